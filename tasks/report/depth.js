// The chart of a cell's operators along its graph: the total and the introduced SNR of every compared operator.

const CEILING = 100; // in dB; the hundreds of dB of an almost exact operator would flatten all others
const FLOOR = -60;
// The name of the worst operator has the space above the plot, so that it covers no mark.
const MARGIN = { left: 34, right: 10, top: 30, bottom: 40 };

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
  const places = new Map([...new Set(rows.map((row) => row.operator_index))].sort((a, b) => a - b).map((index, i) => [index, i]));
  const last = Math.max(1, places.size - 1);
  const clip = (v) => Math.min(high, Math.max(low, v));
  return {
    low, high, clip,
    x: (row) => MARGIN.left + (width - MARGIN.left - MARGIN.right) * places.get(row.operator_index) / last,
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
  const key = (style, name, kind, word) => [" ", explain(element("span", { class: `key ${style}`, tabindex: "0" }, name), kind, word)];
  return [
    ...key("", "total", "term", "total"), ...(marked.length ? key("introduced", "introduced", "term", "introduced error") : []),
    ...verdicts.flatMap((verdict) => key(`verdict-${verdict}`, `verdict ${verdict}`, "verdict", verdict)),
  ];
}

/** Return the name of the worst operator above the plot, and a line from the name to its mark. */
function worstLabel(figure, rows, at, width) {
  const worst = rows.filter((row) => row.operator === figure.dataset.worst && levelOf(row) !== null)
    .sort((a, b) => levelOf(a) - levelOf(b))[0];
  if (!worst) return [];
  const [x, y] = [at.x(worst), at.y(levelOf(worst))];
  const label = `${worst.module_path || worst.operator} ${db[0](levelOf(worst))} dB`;
  const half = 3.5 * label.length; // at most 7 px per character
  const middle = Math.max(half, Math.min(width - half, x));
  return [
    shape("line", { class: "worst-line", x1: x, x2: x, y1: 16, y2: y - 6 }),
    shape("circle", { class: "worst", cx: x, cy: y, r: 6 }),
    shape("text", { class: "worst-name", x: middle, y: 12, "text-anchor": "middle" }, label),
  ];
}

/** Draw total and introduced SNR of every compared operator along the graph; the others are ticks on the rail below. */
function drawDepth(figure) {
  const cell = figure.closest(".cell");
  const everyOperator = operatorsOf(cell);
  const exists = ([, rows]) => rows.some((row) => row.reference === "edge" && !FOLDED.includes(row.status));
  const operators = everyOperator.filter(exists);
  const rows = operators.flatMap(([, operatorRows]) => operatorRows).filter((row) => row.reference === "edge");
  if (!rows.length) return figure.remove();
  const width = Math.max(260, figure.clientWidth), height = 248;
  const at = scales(rows, width, height);
  const compared = rows.filter((row) => row.snr_db !== null);
  const count = operators.filter(([, operatorRows]) => operatorRows.some((row) => row.snr_db !== null)).length;
  const others = operators.length - count, folded = everyOperator.length - operators.length;
  const summary = `${count} operators with an SNR` + (others ? `, ${others} without (ticks below)` : "")
    + (folded ? `; ${folded} that do not exist on the device are left out` : "");
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
  svg.append(...worstLabel(figure, rows, at, width));
  svg.append(shape("text", { x: MARGIN.left, y: height - 6 }, "first operator"));
  svg.append(shape("text", { x: width - MARGIN.right, y: height - 6, "text-anchor": "end" }, "last"));
  const cursor = shape("line", { class: "cursor", y1: MARGIN.top, y2: rail + 6, visibility: "hidden" });
  const picked = shape("circle", { class: "picked", r: 7, visibility: "hidden" });
  svg.append(cursor, picked);

  const readout = element("p", { class: "readout", "aria-live": "polite" }, summary);
  const point = (position, mark = null) => {
    figure.dataset.at = position;
    const [, operatorRows] = operators[position];
    cursor.setAttribute("x1", at.x(operatorRows[0]));
    cursor.setAttribute("x2", at.x(operatorRows[0]));
    cursor.setAttribute("visibility", "visible");
    picked.setAttribute("visibility", mark ? "visible" : "hidden");
    if (mark) for (const [name, value] of [["cx", mark.x], ["cy", mark.y]]) picked.setAttribute(name, value);
    readout.textContent = summaryOf(operatorRows);
  };
  const leave = () => {
    for (const drawn of [cursor, picked]) drawn.setAttribute("visibility", "hidden");
    readout.textContent = summary;
  };
  const marks = marksOf(operators, at, rail + 3);
  const nearest = (event) => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) * width / box.width, y = (event.clientY - box.top) * height / box.height;
    const away = marks.map((mark) => Math.hypot(mark.x - x, mark.y - y));
    return marks[away.indexOf(Math.min(...away))];
  };
  const show = (position) => visit(`${cell.id}/operator-${operators[position][0]}`);
  svg.addEventListener("pointermove", (event) => {
    const mark = nearest(event);
    point(mark.position, mark);
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("click", (event) => show(nearest(event).position));
  svg.addEventListener("keydown", (event) => {
    const here = Number(figure.dataset.at ?? -1), end = operators.length - 1;
    const there = { ArrowRight: Math.min(end, here + 1), ArrowLeft: Math.max(0, here - 1), Home: 0, End: end }[event.key];
    if (there !== undefined) point(there);
    else if (event.key === "Enter" && here >= 0) show(here);
    else return;
    event.preventDefault();
  });
  const title = element("figcaption", {}, "SNR along the graph, dB, against the edge graph on the host:", ...keysOf(rows));
  figure.replaceChildren(title, svg, readout);
}

/** Return the marks of all operators, with their places. `rail`: the height of the ticks of operators without an SNR. */
function marksOf(operators, at, rail) {
  return operators.flatMap(([, rows], position) => rows.filter((row) => row.reference === "edge").flatMap((row) => {
    const heights = [row.snr_db, introducedOf(row)].filter((v) => v !== null).map(at.y);
    return (heights.length ? heights : [rail]).map((y) => ({ position, x: at.x(row), y }));
  }));
}
