// The long tables. A table is drawn when it is opened, sorted by a click on a column head, and filtered by text and status.

const FORMATS = { cosine, db, lines, place, real, text, whole };

/** Add to a table cell what its word means, and to a verdict its colour. */
function explain(tableCell, name, word) {
  const meaning = shared.meanings[name]?.[word];
  if (meaning) tableCell.title = meaning;
  if (meaning && name === "verdict") tableCell.dataset.verdict = word;
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
    const button = element("button", { type: "button" }, title);
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
    explain(tableCell, name, value);
    return tableCell;
  }))]));
  for (const [row, line] of cells) if ("operator_index" in row) line.dataset.operator = row.operator_index;

  const [tools, admits] = filterTools(kind, rows, columns, () => fill());
  function fill() {
    const shown = rows.filter(admits);
    if (sort.name) shown.sort((a, b) => compare(a[sort.name], b[sort.name], sort.direction));
    body.replaceChildren(...shown.map((row) => cells.get(row)));
    tools.querySelector("output").textContent = `${shown.length} of ${rows.length}`;
  }
  const title = panel.querySelector("summary").textContent.trim();
  const scroll = element("div", { class: "scroll long", tabindex: "0", role: "region", "aria-label": title },
    element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body));
  host.replaceChildren(...(rows.length > 8 ? [tools] : []), scroll);
  fill();
}

/** Return the inputs that filter a table, and the predicate for its rows. */
function filterTools(kind, rows, columns, changed) {
  const search = element("input", { type: "search", placeholder: "any text in a row", autocomplete: "off" });
  const status = element("select", {}, element("option", { value: "" }, "all"));
  const counts = new Map();
  for (const row of rows) if ("status" in row) counts.set(row.status, (counts.get(row.status) || 0) + 1);
  for (const [name, count] of counts) status.append(element("option", { value: name }, `${name} (${count})`));
  const tools = element("div", { class: "tools" }, element("label", {}, "Find", search));
  if (counts.size) tools.append(element("label", {}, "Status", status));
  tools.append(element("output"));
  tools.addEventListener("input", changed);
  const words = columns.map(([, name]) => name);
  return [tools, (row) => {
    if (status.value && row.status !== status.value) return false;
    const wanted = search.value.trim().toLowerCase();
    return !wanted || words.some((name) => String(row[name] ?? "").toLowerCase().includes(wanted));
  }];
}
