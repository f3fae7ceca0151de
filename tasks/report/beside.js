// Two cells side by side: their facts, and their operators, matched by module and function.

const MOST_DIFFERENCES = 40;
const MATTERS_DB = 60; // a difference beyond this SNR is not looked for: both values are as good as right

const nameOf = (cell) => cell.querySelector(".permalink").id;

/** Draw the choice of the second cell and, if there is one in the panel's data, the comparison. */
function drawBeside(panel) {
  const host = panel.querySelector(".beside-host"), cell = panel.closest(".cell");
  if (!host.firstChild) {
    const near = (other) => ["model", "scheme", "soc"].filter((name) => other.dataset[name] === cell.dataset[name]).length;
    const others = cells.filter((other) => other !== cell).sort((a, b) => near(b) - near(a));
    const select = element("select", {}, element("option", { value: "" }, "choose a cell"),
      ...others.map((other) => element("option", { value: other.id.replace("cell-", "") }, nameOf(other))));
    select.addEventListener("change", () => {
      panel.dataset.other = select.value;
      history.replaceState(null, "", address(select.value ? `${panel.id}/with-${select.value}` : panel.id));
      fillBeside(panel, cell);
    });
    host.append(element("div", { class: "tools" }, element("label", {}, "Second cell", select)), element("div", { class: "pair" }));
  }
  host.querySelector("select").value = panel.dataset.other ?? "";
  fillBeside(panel, cell);
}

function fillBeside(panel, cell) {
  const other = panel.dataset.other ? document.getElementById(`cell-${panel.dataset.other}`) : null;
  panel.querySelector(".pair").replaceChildren(...(other ? [factsBeside(cell, other), operatorsBeside(cell, other)] : []));
}

/** Return the facts of a cell, and the lowest SNR of every rung of its first output, by name. */
function factsOf(cell) {
  const facts = new Map();
  facts.set("outcome", cell.querySelector(".badge").textContent.trim());
  for (const row of cell.querySelectorAll(".ladder tbody:first-of-type tr:not(.eager)")) {
    facts.set(`rung ${row.querySelector("th").textContent}, lowest SNR, dB`, row.querySelector("td.strong").textContent);
  }
  for (const fact of cell.querySelectorAll(".facts dl > div")) {
    facts.set(fact.querySelector("dt").textContent, fact.querySelector("dd").textContent);
  }
  return facts;
}

function factsBeside(cell, other) {
  const [a, b] = [factsOf(cell), factsOf(other)];
  const names = [...new Set([...a.keys(), ...b.keys()])];
  const lines = names.map((name) => {
    const [before, after] = [a.get(name) ?? NULL, b.get(name) ?? NULL];
    return element("tr", { class: before === after ? "same" : "" }, element("th", { scope: "row" }, name),
      element("td", { class: "n" }, before), element("td", { class: "n" }, after));
  });
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": labelOf(cell, "Facts beside another cell") },
    element("table", { class: "side facts-side" }, head(["", ""], [nameOf(cell), "n"], [nameOf(other), "n"]), element("tbody", {}, ...lines)));
}

/** Return the worst row of every operator that was compared, by module, function and position among equal ones. */
function comparable(cell) {
  const rows = new Map(), counts = new Map();
  for (const [, all] of operatorsOf(cell)) {
    const edge = all.filter((row) => row.reference === "edge" && row.snr_db !== null);
    const { module_path: module, target } = all[0];
    const place = `${module} ${target}`;
    counts.set(place, (counts.get(place) ?? 0) + 1);
    if (edge.length) rows.set(`${place} ${counts.get(place)}`, worstOf(edge));
  }
  return rows;
}

function operatorsBeside(cell, other) {
  const [a, b] = [comparable(cell), comparable(other)];
  const both = [...a.keys()].filter((key) => b.has(key));
  if (!both.length) return element("p", { class: "remark" }, "No operator was compared in both cells.");
  const change = (key) => Math.min(MATTERS_DB, b.get(key).snr_db) - Math.min(MATTERS_DB, a.get(key).snr_db);
  const ranked = both.sort((x, y) => Math.abs(change(y)) - Math.abs(change(x)));
  const number = (value) => element("td", { class: "n" }, value === null || value === undefined ? NULL : db[0](value));
  const verdict = (row) => element("td", { "data-verdict": row.verdict ?? "" }, row.verdict ?? NULL);
  const lines = ranked.slice(0, MOST_DIFFERENCES).map((key) => {
    const [x, y] = [a.get(key), b.get(key)];
    const link = (host, row, content) => element("a", { href: `#${host.id}/operator-${row.operator_index}` }, ...content);
    return element("tr", {},
      element("th", { scope: "row" }, link(cell, x, breakable(x.module_path || x.operator)), element("small", {}, link(other, y, breakable(y.operator)))),
      verdict(x), verdict(y), number(x.snr_db), number(y.snr_db), element("td", { class: "n strong" }, db[0](change(key))),
      number(x.introduced_snr_db), number(y.introduced_snr_db));
  });
  const left = ranked.length - lines.length, alone = a.size + b.size - 2 * both.length;
  return element("div", {},
    element("div", { class: "scroll long", tabindex: "0", role: "region", "aria-label": labelOf(cell, "Operators beside another cell") },
      element("table", { class: "side" },
        head(["module, operator", ""], ["verdict", ""], ["second", ""], ["total dB", "n", "total"], ["second", "n"], ["change", "n"],
          ["introduced dB", "n", "introduced error"], ["second", "n"]),
        element("tbody", {}, ...lines))),
    element("p", { class: "remark" }, `${both.length} operators of the same module and function were compared in both cells, the largest change of the total SNR below ${MATTERS_DB} dB first`
      + (left > 0 ? `; ${left} more with smaller changes` : "") + (alone ? `; ${alone} without a counterpart` : "") + "."));
}
