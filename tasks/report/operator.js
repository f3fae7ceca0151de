// The card of the selected operator: its facts, and its comparison on each sample.

/** Return names of operators as links to their cards. A name that is no operator of this cell is plain text. */
function operatorLinks(cell, names) {
  const numbers = new Map(rowsOf(cell, "operators").map((row) => [row.operator, row.operator_index]));
  return names.split(", ").flatMap((name, i) => {
    const number = numbers.get(name);
    const link = number === undefined || number === null ? name
      : element("a", { href: `#${cell.id}/operator-${number}` }, ...breakable(name));
    return i ? [", ", link] : [link];
  });
}

/** Show the card of one operator: its facts, its comparison on each sample, its time. */
function showOperator(cell, index) {
  const figure = cell.querySelector(".depth");
  if (!figure) return null;
  if (!figure.firstChild) drawDepth(figure);
  const operators = operatorsOf(cell);
  const position = operators.findIndex(([number]) => number === index);
  if (position < 0) return null;
  const rows = operators[position][1];
  const row = worstOf(rows);
  const facts = element("dl");
  const add = (name, value, ...parts) => {
    if (value === null || value === undefined || value === "") return;
    facts.append(element("div", { class: name === "written at" ? "wide" : "" }, element("dt", {}, name), element("dd", {}, ...(parts.length ? parts : [String(value)]))));
  };
  add("target", row.target);
  add("module", row.module_path);
  add("shape", row.shape, `${row.shape} ${row.dtype ?? ""}`);
  add("runs on", row.delegated, row.delegated ? "delegate" : "CPU");
  add("debug handle", row.debug_handle);
  add("took p50", row.took_p50, `${whole[0](row.took_p50 ?? 0)} ${row.took_unit}`);
  add("counted in", row.counted_in, ...operatorLinks(cell, row.counted_in || ""));
  add("together with", row.took_with, ...operatorLinks(cell, row.took_with || ""));
  add("masked by", row.masked_by, ...operatorLinks(cell, row.masked_by || ""));
  add("why", row.why);
  add("written at", row.stack_trace, element("code", {}, row.stack_trace ?? ""));
  const columns = [
    ["sample", "sample", whole], ["captured as", "sample_role", text], ["reference", "reference", text], ["status", "status", text], ["verdict", "verdict", text],
    ["total dB", "snr_db", db], ["inherited dB", "inherited_snr_db", db], ["grid dB", "grid_snr_db", db],
    ["introduced dB", "introduced_snr_db", db], ["worst channel dB", "introduced_channel_snr_db", db],
    ["steps", "introduced_steps", real], ["mean steps", "introduced_mean_steps", real], ["gain", "introduced_gain", real],
    ["clipped", "clipped_elements", whole], ["codes used", "codes_used", whole],
    ["introduced alone, dB", "effect_snr_db", db],
    ["max abs", "max_abs", real], ["cosine", "cosine", cosine],
  ].filter(([, name]) => name in row);
  const cellOf = (sample, [, name, [format, right]]) => {
    const value = sample[name] ?? null;
    const tableCell = element("td", { class: right ? "n" : "" }, value === null ? NULL : format(value));
    explainCell(tableCell, name, value);
    return tableCell;
  };
  const table = element("table", {},
    element("thead", {}, element("tr", {}, ...columns.map(([title, name, [, right]]) =>
      explain(element("th", { scope: "col", class: right ? "n" : "" }, title), "term", shared.terms[name])))),
    element("tbody", {}, ...rows.map((sample) => element("tr", {}, ...columns.map((column) => cellOf(sample, column))))));
  const step = (by, label) => {
    const other = operators[position + by];
    return other ? element("a", { href: `#${cell.id}/operator-${other[0]}`, title: other[1][0].operator }, label) : "";
  };
  const card = cell.querySelector(".operator") ?? element("section", { class: "operator", tabindex: "-1" });
  cell.querySelector(".evidence").append(card);
  card.hidden = false;
  card.setAttribute("aria-label", labelOf(cell, `Operator ${row.operator}`));
  card.replaceChildren(
    element("header", {},
      element("h4", {}, element("span", {}, `${index} `), ...breakable(row.operator)),
      element("nav", {}, step(-1, "← before"), " ", step(1, "after →"), " ",
        element("a", { href: `#${cell.id}-operators/operator-${index}` }, "in the table"), " ",
        element("a", { href: `#${cell.id}` }, "↑ cell"))),
    facts,
    neighboursOf(cell, index),
    detailOf(cell, index),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": labelOf(cell, `Comparison of ${row.operator}`) }, table),
    tensorsCommand(cell, row));
  return card;
}

/** Open the table of operators at one operator. */
function showInTable(cell, index) {
  const panel = cell.querySelector('[data-table="operators"]');
  panel.open = true;
  drawTable(panel);
  for (const line of panel.querySelectorAll("tr.picked")) line.classList.remove("picked");
  const lines = panel.querySelectorAll(`tr[data-operator="${index}"]`);
  for (const line of lines) line.classList.add("picked");
  lines[0]?.scrollIntoView({ block: "center" });
  return panel.querySelector(".scroll");
}
