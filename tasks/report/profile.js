// The chart of a cell's operators along the depth of its graph, and the card of the selected operator.

const CEILING = 100; // in dB; the hundreds of dB of an almost exact operator would flatten all others
const FLOOR = -60;
const MARGIN = { left: 34, right: 10, top: 12, bottom: 40 };

const introducedOf = (row) => row.introduced_snr_db ?? null;
const levelOf = (row) => introducedOf(row) ?? row.snr_db;

/** Return one entry per operator, in the order of the graph: its rows over all samples and references. */
function operatorsOf(cell) {
  const byIndex = new Map();
  for (const row of rowsOf(cell, "operators")) {
    if (row.operator_index === null) continue;
    if (!byIndex.has(row.operator_index)) byIndex.set(row.operator_index, []);
    byIndex.get(row.operator_index).push(row);
  }
  return [...byIndex].sort(([a], [b]) => a - b);
}

/** Return the scales that place an operator's row in a chart of this width and height. */
function scales(rows, width, height) {
  const drawn = rows.flatMap((row) => [row.snr_db, introducedOf(row)]).filter((v) => v !== null);
  const low = Math.min(0, ...drawn.map((v) => Math.max(FLOOR, v)));
  const high = Math.min(CEILING, Math.max(20, ...drawn));
  const last = Math.max(1, ...rows.map((row) => row.operator_index));
  const clip = (v) => Math.min(high, Math.max(low, v));
  return {
    low, high, clip,
    x: (row) => MARGIN.left + (width - MARGIN.left - MARGIN.right) * row.operator_index / last,
    y: (v) => MARGIN.top + (height - MARGIN.top - MARGIN.bottom) * (high - clip(v)) / (high - low),
  };
}

/** Return one line of text about an operator's worst row. */
function summaryOf(rows) {
  const row = worstOf(rows);
  const introduced = introducedOf(row) === null ? "" : `, introduced ${db[0](introducedOf(row))} dB`;
  const gap = row.snr_db === null ? row.status : `total ${db[0](row.snr_db)} dB${introduced}, ${row.verdict ?? row.status}`;
  return `${row.operator_index} ${row.operator}: ${gap}`;
}

function worstOf(rows) {
  const defined = rows.filter((row) => levelOf(row) !== null);
  return defined.sort((a, b) => levelOf(a) - levelOf(b))[0] ?? rows[0];
}

const DIAMOND = "m0 -5l5 5l-5 5l-5 -5z";
const SHAPES = { introduced: DIAMOND, biased: DIAMOND, contradicted: "m-4 -4l8 8m0 -8l-8 8", grid: "m-4 3.5h8l-4 -7.5z" };

/** Return the mark of a row. The verdicts have different shapes, so that no colour is needed to distinguish them. */
function markOf(row, at) {
  const introduced = introducedOf(row);
  if (introduced === null) return [];
  const [x, y] = [at.x(row), at.y(introduced)];
  if (!(row.verdict in SHAPES)) {
    return [shape("rect", { class: "introduced", x: x - 2.2, y: y - 2.2, width: 4.4, height: 4.4 })];
  }
  return [shape("path", { class: `introduced verdict-${row.verdict}`, d: `M${x} ${y}${SHAPES[row.verdict]}` })];
}

/** Return the legend of the chart: the marks that it contains. */
function keysOf(rows) {
  const marked = rows.filter((row) => introducedOf(row) !== null);
  const verdicts = Object.keys(SHAPES).filter((verdict) => marked.some((row) => row.verdict === verdict));
  const key = (style, name, meaning = "") => [" ", element("span", { class: `key ${style}`, title: meaning }, name)];
  return [
    ...key("", "total"), ...(marked.length ? key("introduced", "introduced") : []),
    ...verdicts.flatMap((verdict) => key(`verdict-${verdict}`, `verdict ${verdict}`, shared.meanings.verdict[verdict])),
  ];
}

function worstLabel(figure, rows, at, width, height) {
  const worst = rows.filter((row) => row.operator === figure.dataset.worst && levelOf(row) !== null)
    .sort((a, b) => levelOf(a) - levelOf(b))[0];
  if (!worst) return [];
  const [x, y] = [at.x(worst), at.y(levelOf(worst))];
  const label = `${worst.operator} ${db[0](levelOf(worst))} dB`;
  const length = 7 * label.length; // at most 7 px per character
  const below = y < height - MARGIN.bottom - 22;
  const place = x + 7 + length <= width ? { x: x + 7 }
    : x - 7 - length >= 0 ? { x: x - 7, "text-anchor": "end" } : { x: width, "text-anchor": "end" };
  return [
    shape("circle", { class: "worst", cx: x, cy: y, r: 6 }),
    shape("text", { class: "worst-name", y: y + (below ? 18 : -11), ...place }, label),
  ];
}

/** Draw total and introduced SNR of every compared operator along the graph; the others are ticks on the rail below. */
function drawDepth(figure) {
  const cell = figure.closest(".cell");
  const operators = operatorsOf(cell);
  const rows = operators.flatMap(([, operatorRows]) => operatorRows).filter((row) => row.reference === "edge");
  if (!rows.length) return figure.remove();
  const width = Math.max(260, figure.clientWidth), height = 230;
  const at = scales(rows, width, height);
  const compared = rows.filter((row) => row.snr_db !== null);
  const count = operators.filter(([, operatorRows]) => operatorRows.some((row) => row.snr_db !== null)).length;
  const others = operators.length - count;
  const summary = `${count} operators with an SNR` + (others ? `, ${others} without (ticks below)` : "");
  const svg = shape("svg", {
    viewBox: `0 0 ${width} ${height}`, height, tabindex: "0", role: "application",
    "aria-label": `SNR along the graph: ${summary}. Arrow keys pick an operator, Enter shows it.`,
  });
  const step = at.high - at.low > 60 ? 20 : 10;
  for (let v = Math.ceil(at.low / step) * step; v <= at.high; v += step) {
    svg.append(shape("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: at.y(v), y2: at.y(v) }));
    svg.append(shape("text", { x: MARGIN.left - 7, y: at.y(v) + 4, "text-anchor": "end" }, v));
  }
  for (const sample of new Set(compared.map((row) => row.sample))) {
    const points = compared.filter((row) => row.sample === sample).map((row) => [at.x(row), at.y(row.snr_db)]);
    svg.append(shape("polyline", { class: "trace", points: points.join(" ") }));
  }
  const rail = height - MARGIN.bottom + 8;
  for (const row of rows) {
    svg.append(row.snr_db === null
      ? shape("line", { class: "rail", x1: at.x(row), x2: at.x(row), y1: rail, y2: rail + 6 })
      : shape("circle", { class: at.clip(row.snr_db) === row.snr_db ? "" : "clipped", cx: at.x(row), cy: at.y(row.snr_db), r: 2.3 }));
  }
  for (const row of rows) svg.append(...markOf(row, at));
  svg.append(...worstLabel(figure, rows, at, width, height));
  svg.append(shape("text", { x: MARGIN.left, y: height - 6 }, "first operator"));
  svg.append(shape("text", { x: width - MARGIN.right, y: height - 6, "text-anchor": "end" }, "last"));
  const cursor = shape("line", { class: "cursor", y1: MARGIN.top, y2: rail + 6, visibility: "hidden" });
  svg.append(cursor);

  const readout = element("p", { class: "readout", "aria-live": "polite" }, summary);
  const point = (position) => {
    figure.dataset.at = position;
    const [, operatorRows] = operators[position];
    cursor.setAttribute("x1", at.x(operatorRows[0]));
    cursor.setAttribute("x2", at.x(operatorRows[0]));
    cursor.setAttribute("visibility", "visible");
    readout.textContent = summaryOf(operatorRows);
  };
  const leave = () => {
    cursor.setAttribute("visibility", "hidden");
    readout.textContent = summary;
  };
  const nearest = (event) => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) * width / box.width;
    const away = operators.map(([, operatorRows]) => Math.abs(at.x(operatorRows[0]) - x));
    return away.indexOf(Math.min(...away));
  };
  const show = (position) => visit(`${cell.id}/operator-${operators[position][0]}`);
  svg.addEventListener("pointermove", (event) => point(nearest(event)));
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("click", (event) => show(nearest(event)));
  svg.addEventListener("keydown", (event) => {
    const here = Number(figure.dataset.at ?? -1), end = operators.length - 1;
    const there = { ArrowRight: Math.min(end, here + 1), ArrowLeft: Math.max(0, here - 1), Home: 0, End: end }[event.key];
    if (there !== undefined) point(there);
    else if (event.key === "Enter" && here >= 0) show(here);
    else return;
    event.preventDefault();
  });
  figure.replaceChildren(element("figcaption", {}, "SNR along the graph, dB:", ...keysOf(rows)), svg, readout);
}

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
    ["sample", "sample", whole], ["reference", "reference", text], ["status", "status", text], ["verdict", "verdict", text],
    ["total dB", "snr_db", db], ["inherited dB", "inherited_snr_db", db], ["grid dB", "grid_snr_db", db],
    ["introduced dB", "introduced_snr_db", db], ["worst channel dB", "introduced_channel_snr_db", db],
    ["steps", "introduced_steps", real], ["mean steps", "introduced_mean_steps", real], ["gain", "introduced_gain", real],
    ["clipped", "clipped_elements", whole], ["codes used", "codes_used", whole],
    ["introduced alone, dB", "effect_snr_db", db, "SNR of the final outputs if the introduced error were the only error"],
    ["max abs", "max_abs", real], ["cosine", "cosine", cosine],
  ].filter(([, name]) => name in row);
  const cellOf = (sample, [, name, [format, right]]) => {
    const value = sample[name] ?? null;
    const tableCell = element("td", { class: right ? "n" : "" }, value === null ? NULL : format(value));
    explain(tableCell, name, value);
    return tableCell;
  };
  const table = element("table", {},
    element("thead", {}, element("tr", {}, ...columns.map(([title, , [, right], explained = ""]) =>
      element("th", { scope: "col", class: right ? "n" : "", title: explained }, title)))),
    element("tbody", {}, ...rows.map((sample) => element("tr", {}, ...columns.map((column) => cellOf(sample, column))))));
  const step = (by, label) => {
    const other = operators[position + by];
    return other ? element("a", { href: `#${cell.id}/operator-${other[0]}`, title: other[1][0].operator }, label) : "";
  };
  const card = cell.querySelector(".operator") ?? element("section", { class: "operator", tabindex: "-1" });
  cell.querySelector(".evidence").append(card);
  card.hidden = false;
  card.setAttribute("aria-label", `Operator ${row.operator}`);
  card.replaceChildren(
    element("header", {},
      element("h4", {}, element("span", {}, `${index} `), ...breakable(row.operator)),
      element("nav", {}, step(-1, "← before"), " ", step(1, "after →"), " ",
        element("a", { href: `#${cell.id}-operators/operator-${index}` }, "in the table"), " ",
        element("a", { href: `#${cell.id}` }, "↑ cell"))),
    facts,
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Comparison of ${row.operator}` }, table));
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
