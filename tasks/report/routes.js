// The address of the page: `#<place>?<filter>`. A place is the matrix, a cell, or a panel or operator of a cell.

/** Return the place and the filter in the address. */
function route() {
  const [place, , filter] = location.hash.slice(1).split(/(\?)(.*)/s);
  return { place: decodeURIComponent(place), filter: filter === undefined ? null : new URLSearchParams(filter) };
}

function address(place) {
  const wanted = filterValues().toString();
  return `#${place}${wanted ? `?${wanted}` : ""}`;
}

function visit(place) {
  if (location.hash === address(place)) arrive();
  else location.hash = address(place);
}

/** Go to the place in the address, open it and give it the focus. */
function arrive() {
  const { place, filter } = route();
  if (filter) applyFilter(filter);
  const [before, operator] = place.split("/operator-");
  const [anchor, other] = before.split("/with-");
  const named = document.getElementById(anchor);
  const cell = named?.closest(".cell");
  const target = named?.matches(".permalink") ? cell : named;
  // A place that the filter hides has no position to scroll to: clear the filter, or unfold.
  if (cell?.hidden) applyFilter(new URLSearchParams("folded" in cell.dataset ? "fold=no" : ""));
  if (place) history.replaceState(null, "", address(place));
  for (const other of cells) other.classList.toggle("here", other === cell);
  if (!target) return;
  if (!cell) return focusAndScroll(target, anchor === "matrix" ? links.find((link) => link.tabIndex === 0) : null);
  rove(links.find((link) => `cell-${link.dataset.cell}` === cell.id));
  if (operator !== undefined) {
    const index = Number(operator);
    const shown = anchor === cell.id ? showOperator(cell, index) : showInTable(cell, index);
    if (shown) return focusAndScroll(shown, shown, anchor === cell.id ? "nearest" : "center");
  }
  const card = cell.querySelector(".operator");
  if (card && target === cell) card.hidden = true;
  if (target.matches("details")) {
    if (other !== undefined) target.dataset.other = other;
    target.open = true;
    draw(target);
    return focusAndScroll(target, target.querySelector("summary"));
  }
  focusAndScroll(target, target);
}

function focusAndScroll(target, focused, block = "start") {
  focused?.focus({ preventScroll: true });
  target.scrollIntoView({ block });
}

/** Go up one level: from an operator or a panel to its cell, from a cell to its link in the matrix. */
function up(event) {
  if (event.key !== "Escape" || event.target.matches("input, select")) return;
  const inside = event.target.closest?.(".cell") ?? document.querySelector(".cell.here");
  if (!inside) return;
  const { place } = route();
  rove(links.find((link) => `cell-${link.dataset.cell}` === inside.id));
  const below = place.startsWith(`${inside.id}/`) || place.startsWith(`${inside.id}-`);
  visit(below ? inside.id : "matrix");
}

function draw(panel) {
  if (panel.querySelector(".log")) panel.querySelector(".log").textContent = dataOf(panel.closest(".cell")).log;
  else if (panel.querySelector(".beside-host")) drawBeside(panel);
  else if (panel.dataset.table === "trends") drawTrends(panel);
  else if (panel.dataset.table) drawTable(panel);
}

document.addEventListener("toggle", (event) => event.target.open && draw(event.target), true);
document.querySelectorAll(".panel[data-table][open]").forEach(draw); // a browser that restores a page opens these panels itself

const FIGURES = { budget: drawBudget, depth: drawDepth, ladder: drawLadder, latency: drawLatency };
const figures = [...document.querySelectorAll("figure, .ladder")];
const drawFigure = (figure) => FIGURES[figure.className](figure);
const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    observer.unobserve(target);
    if (!target.firstChild || target.matches(".ladder")) drawFigure(target);
  }
}, { rootMargin: "600px" });
figures.forEach((figure) => observer.observe(figure));
window.addEventListener("resize", () => figures.forEach((figure) => figure.firstChild && drawFigure(figure)));
window.addEventListener("beforeprint", () => figures.forEach(drawFigure));

if (form) {
  form.elements.measure.append(...HEAT.measures.map((measure) => element("option", { value: measure.name }, measure.title)));
  form.hidden = false;
  for (const name of document.querySelectorAll(".worst-operator")) {
    const cell = name.closest(".cell");
    if (name.textContent !== NULL && cell.querySelector(".depth")) {
      const link = element("a", { href: `#${cell.id}` }, ...name.childNodes);
      // The operator's number is in the cell's data, which is parsed when it is first needed.
      link.addEventListener("click", (event) => {
        const row = rowsOf(cell, "operators").find((operator) => operator.operator === link.textContent);
        if ((row?.operator_index ?? null) === null) return; // a value that was requantized has no card
        event.preventDefault();
        visit(`${cell.id}/operator-${row.operator_index}`);
      });
      name.append(link);
    }
  }
  const filtered = () => {
    filterCells();
    history.replaceState(null, "", address(route().place || "matrix"));
  };
  form.addEventListener("input", filtered);
  form.querySelector(".clear").addEventListener("click", () => {
    applyFilter(new URLSearchParams());
    filtered();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  matrix.addEventListener("keydown", walk);
  document.addEventListener("keydown", up);
  window.addEventListener("hashchange", arrive);
  applyFilter(route().filter ?? new URLSearchParams());
  // When the page is loaded, the browser goes to the fragment and takes the focus away: go to the place afterwards.
  if (location.hash && document.readyState === "complete") setTimeout(arrive);
  else if (location.hash) window.addEventListener("load", () => setTimeout(arrive));
}
