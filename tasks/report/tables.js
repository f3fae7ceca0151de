// The long tables. A table is drawn when it is opened, sorted by a click on a column head, and filtered by text and status.

const FORMATS = { cosine, db, lines, mebibytes, place, real, text, whole };

// The worst verdict first.
const VERDICT_ORDER = ["introduced", "contradicted", "biased", "grid", "inherited", "blind", "within_grid", "exact"];
const FOLDED = ["constant", "unused", "tuple"]; // values that do not exist on the device

/** Add to a table cell what its word means, and to a verdict its colour. */
function explainCell(tableCell, name, word) {
  explain(tableCell, name, word);
  if (name === "verdict" && word !== null) tableCell.dataset.verdict = word;
}

/** Compare two operators: the worst verdict first, and within a verdict the largest effect first. */
function byImportance(a, b) {
  const rank = (row) => VERDICT_ORDER.indexOf(row.verdict);
  return rank(a) - rank(b) || compare(a.effect_snr_db, b.effect_snr_db, 1) || compare(a.snr_db, b.snr_db, 1);
}

/** Compare two values for sorting. Undefined values are last in either direction. */
function compare(a, b, direction) {
  if (a === null || b === null) return (a === null) - (b === null);
  return direction * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
}

function drawTable(panel) {
  const host = panel.querySelector(".table-host");
  if (host.dataset.drawn) return;
  host.dataset.drawn = "yes";
  const kind = panel.dataset.table;
  const rows = rowsOf(panel.closest(".cell"), kind);
  const varies = (name) => new Set(rows.map((row) => row[name])).size > 1;
  const columns = shared.views[kind]
    .filter(([, name, , ifItVaries]) => name in rows[0] && (!ifItVaries || varies(name)))
    .map(([title, name, format]) => [title, name, FORMATS[format]]);
  const sort = { name: null, direction: 1 };

  const body = element("tbody");
  const heads = columns.map(([title, name, [, right]]) => {
    const button = explain(element("button", { type: "button" }, title), "term", shared.terms[name]);
    const head = element("th", { scope: "col", class: right ? "n" : "" }, button);
    button.addEventListener("click", () => {
      sort.direction = sort.name === name ? -sort.direction : 1;
      sort.name = name;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sort.direction > 0 ? "ascending" : "descending");
      fill();
    });
    return head;
  });
  const cells = new Map(rows.map((row) => [row, element("tr", {}, ...columns.map(([, name, [format, right, style]]) => {
    const value = row[name];
    const card = name === "operator" && (row.operator_index ?? null) !== null;
    const written = value === null ? NULL : format(value);
    const tableCell = element("td", { class: right ? "n" : style || "" },
      card ? element("a", { href: `#${panel.closest(".cell").id}/operator-${row.operator_index}` }, written) : written);
    if (right && value !== null) tableCell.title = String(value);
    explainCell(tableCell, name, value);
    return tableCell;
  }))]));
  for (const [row, line] of cells) if ("operator_index" in row) line.dataset.operator = row.operator_index;

  const [tools, admits] = filterTools(kind, rows, columns, () => fill());
  function fill() {
    const shown = rows.filter(admits);
    if (!sort.name && kind === "operators") shown.sort(byImportance);
    if (sort.name) shown.sort((a, b) => compare(a[sort.name], b[sort.name], sort.direction));
    body.replaceChildren(...shown.map((row) => cells.get(row)));
    tools.querySelector("output").textContent = shown.length ? `${shown.length} of ${rows.length}` : "no row has all of this";
  }
  const title = panel.querySelector("summary").textContent.trim();
  const scroll = element("div", { class: "scroll long", tabindex: "0", role: "region", "aria-label": labelOf(panel.closest(".cell"), title) },
    element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body));
  host.replaceChildren(...(rows.length > 8 ? [tools] : []), scroll, csvButton(panel, rows, columns));
  fill();
}

/** Return the inputs that filter a table, and the predicate for its rows. */
function filterTools(kind, rows, columns, changed) {
  const search = element("input", { type: "search", placeholder: "any text in a row", autocomplete: "off" });
  const tools = element("div", { class: "tools" }, element("label", {}, "Find", search));
  const choices = [["Verdict", "verdict"], ["Status", "status"]].filter(([, name]) => name in rows[0]);
  const selects = choices.map(([title, name]) => [name, choiceOf(rows, name, title, tools)]);
  const folded = kind === "operators" ? rows.filter((row) => FOLDED.includes(row.status)).length : 0;
  const unfold = element("input", { type: "checkbox" });
  if (folded) tools.append(element("label", {}, unfold, `also the ${whole[0](folded)} that do not exist on the device`));
  tools.append(element("output"));
  tools.addEventListener("input", changed);
  const words = columns.map(([, name]) => name);
  return [tools, (row) => {
    if (selects.some(([name, select]) => select.value && row[name] !== select.value)) return false;
    const chosen = selects.some(([name, select]) => name === "status" && select.value);
    if (folded && !unfold.checked && !chosen && FOLDED.includes(row.status)) return false;
    const wanted = search.value.trim().toLowerCase();
    return !wanted || words.some((name) => String(row[name] ?? "").toLowerCase().includes(wanted));
  }];
}

/** Append a selection of a column's values to the tools, and return it. */
function choiceOf(rows, name, title, tools) {
  const counts = new Map();
  for (const row of rows) if (row[name] !== null) counts.set(row[name], (counts.get(row[name]) || 0) + 1);
  const select = element("select", {}, element("option", { value: "" }, "all"));
  for (const [value, count] of counts) select.append(element("option", { value }, `${value} (${count})`));
  if (counts.size) tools.append(element("label", {}, title, select));
  return select;
}

/** Return a button that saves all rows of a table as comma-separated values, with the digits that the page has. */
function csvButton(panel, rows, columns) {
  const button = element("button", { type: "button", class: "csv" }, "Save as CSV");
  const quoted = (value) => (/[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  button.addEventListener("click", () => {
    const names = columns.map(([, name]) => name);
    const lines = [names, ...rows.map((row) => names.map((name) => quoted(String(row[name] ?? ""))))];
    const file = new Blob([lines.map((line) => line.join(",")).join("\n") + "\n"], { type: "text/csv" });
    const { model, scheme, soc } = panel.closest(".cell").dataset;
    const link = element("a", { href: URL.createObjectURL(file), download: [model, scheme, soc, `${panel.dataset.table}.csv`].filter(Boolean).join("-") });
    link.click();
    URL.revokeObjectURL(link.href);
  });
  return button;
}
