// The matrix, a heat map that is navigated with arrow keys, and the filter of the matrix and the cells.

const HEAT = JSON.parse(document.getElementById("measures").textContent);
const matrix = document.querySelector(".matrix");
const form = document.getElementById("filter");
const cells = [...document.querySelectorAll(".cell")];
const links = matrix ? [...matrix.querySelectorAll("a[data-cell]")] : [];
const FILTERS = ["measure", "model", "scheme", "soc", "outcome", "fold", "text"];

/** Return a function from a number to its position on the scale: 0 is worst, 1 is best. */
function ranked(measure, values) {
  const defined = values.filter((v) => v !== null);
  const scale = measure.low === null && Math.min(...defined) > 0 ? Math.log : (v) => v;
  const low = scale(measure.low ?? Math.min(...defined)), high = scale(measure.high ?? Math.max(...defined));
  return (v) => {
    const share = high > low ? Math.min(1, Math.max(0, (scale(v) - low) / (high - low))) : .5;
    return measure.less_is_better ? 1 - share : share;
  };
}

/** Return a colour from orange (worst) over neutral to blue (best), which colour-blind readers can distinguish. */
function tint(share) {
  const end = share < .5 ? "--heat-worst" : "--heat-best";
  return `color-mix(in oklab, var(${end}) ${Math.round(200 * Math.abs(share - .5))}%, var(--heat-middle))`;
}

function paint(name) {
  const place = Math.max(0, HEAT.measures.findIndex((measure) => measure.name === name));
  const measure = HEAT.measures[place];
  const values = HEAT.cells.map((cell) => cell[place]).map((v) => (v === null ? null : Number(v)));
  const rank = ranked(measure, values);
  const written = (v) => v.toLocaleString("en", { minimumFractionDigits: measure.digits, maximumFractionDigits: measure.digits });
  for (const link of links) {
    const value = values[link.dataset.cell];
    link.querySelector("b").textContent = value === null ? NULL : written(value);
    link.classList.toggle("heat", value !== null);
    link.style.background = value === null ? "" : tint(rank(value));
  }
  const defined = values.filter((v) => v !== null);
  const ends = defined.length ? [measure.low ?? Math.min(...defined), measure.high ?? Math.max(...defined)] : [0, 0];
  const head = document.querySelector(".measured");
  head.textContent = `${measure.title}${measure.unit ? `, ${measure.unit}` : ""}` + (place ? "" : ", of any output and sample, against eager fp32");
  const legend = document.querySelector(".legend");
  legend.hidden = !defined.length;
  legend.querySelector(".low").textContent = written(ends[0]);
  legend.querySelector(".high").textContent = `${written(ends[1])} ${measure.unit}`;
  legend.querySelector(".better").textContent = measure.less_is_better ? "less is better" : "more is better";
  const colours = measure.less_is_better ? [1, .5, 0] : [0, .5, 1];
  legend.querySelector("i").style.background = `linear-gradient(to right, ${colours.map(tint).join(", ")})`;
}

/** Return the form's values that differ from their defaults. */
function filterValues() {
  const wanted = new URLSearchParams();
  for (const name of FILTERS) {
    const value = form.elements[name].value.trim();
    if (value && !(name === "measure" && value === HEAT.measures[0].name)) wanted.set(name, value);
  }
  return wanted;
}

function applyFilter(wanted) {
  form.reset();
  for (const name of FILTERS) {
    if (wanted.has(name)) form.elements[name].value = wanted.get(name);
    // A value from another run's report that this report does not have is ignored.
    if (form.elements[name].value === "" && form.elements[name].options) form.elements[name].selectedIndex = 0;
  }
  filterCells();
}

function filterCells() {
  const wanted = Object.fromEntries(FILTERS.map((name) => [name, form.elements[name].value.trim()]));
  const words = wanted.text.toLowerCase();
  const folds = wanted.fold === "" && wanted.soc === "";
  let shown = 0;
  for (const [number, cell] of cells.entries()) {
    const differs = ["model", "scheme", "soc", "outcome"].some((name) => wanted[name] && cell.dataset[name] !== wanted[name]);
    const searchedText = () => [...cell.querySelectorAll("header > :not(nav), .reason, .error")].map((part) => part.textContent).join(" ");
    const isOut = differs || (words !== "" && !searchedText().toLowerCase().includes(words));
    shown += isOut ? 0 : 1;
    cell.hidden = isOut || (folds && "folded" in cell.dataset);
    links.find((link) => link.dataset.cell === String(number)).classList.toggle("faded", isOut);
  }
  paint(wanted.measure);
  for (const body of matrix.tBodies) {
    for (const row of body.rows) {
      if (!row.classList.contains("model")) row.hidden = ![...row.querySelectorAll("a")].some((link) => !link.classList.contains("faded"));
    }
    body.hidden = [...body.rows].every((row) => row.hidden || row.classList.contains("model"));
  }
  hideColumns(wanted.soc, folds);
  form.querySelector("output").textContent = `${shown === cells.length ? "" : `${shown} of `}${cells.length} ${cells.length === 1 ? "cell" : "cells"}`;
  form.querySelector(".clear").disabled = filterValues().size === 0;
  rove(links.find((link) => link.tabIndex === 0 && link.offsetParent) ?? links.find((link) => link.offsetParent && !link.classList.contains("faded")));
}

/** Hide the columns of other SoCs while one SoC is selected, and otherwise those that are equal to another one. */
function hideColumns(soc, folds) {
  for (const names of document.querySelectorAll(".also")) names.hidden = !folds;
  const heads = [...matrix.tHead.rows[0].cells];
  for (const row of matrix.rows) {
    if (row.classList.contains("model")) continue;
    [...row.cells].forEach((tableCell, i) => {
      const isOther = soc !== "" && heads[i].querySelector("span")?.textContent !== soc;
      tableCell.hidden = i > 0 && (isOther || (folds && "folded" in heads[i].dataset));
    });
  }
}

/** Keep only this cell of the matrix in the tab order; arrow keys put another cell there. */
function rove(chosen) {
  for (const link of links) link.tabIndex = link === chosen ? 0 : -1;
}

function walk(event) {
  const from = event.target.closest("a[data-cell]");
  if (!from) return;
  const lines = [...matrix.querySelectorAll("tbody tr")].filter((row) => row.offsetParent && row.querySelector("a[data-cell]"));
  const line = lines.indexOf(from.closest("tr"));
  const along = [...lines[line].querySelectorAll("a[data-cell]")].filter((link) => link.offsetParent);
  const here = along.indexOf(from), column = from.closest("td").cellIndex;
  const inLine = (row) => [...row.querySelectorAll("a[data-cell]")].filter((link) => link.offsetParent)
    .sort((a, b) => Math.abs(a.closest("td").cellIndex - column) - Math.abs(b.closest("td").cellIndex - column))[0];
  const to = {
    ArrowRight: () => along[here + 1],
    ArrowLeft: () => along[here - 1],
    Home: () => along[0],
    End: () => along.at(-1),
    ArrowDown: () => lines[line + 1] && inLine(lines[line + 1]),
    ArrowUp: () => lines[line - 1] && inLine(lines[line - 1]),
  }[event.key];
  if (!to) return;
  event.preventDefault();
  const link = to();
  if (!link) return;
  rove(link);
  link.focus();
}
