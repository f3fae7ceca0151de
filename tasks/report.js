// Draws the long tables and the depth charts from the page's own JSON, when they are asked for or come into view.
"use strict";

const NULL = "–";
const SVG = document.querySelector("svg").namespaceURI;
const strings = JSON.parse(document.getElementById("strings").textContent);

// How a column is written: [format, aligned right]. All formats take a defined value.
const whole = [(v) => v.toLocaleString("en"), true];
const db = [(v) => (Number.isFinite(v) ? v.toFixed(1) : v > 0 ? "∞" : "-∞"), true];
const real = [(v) => {
  if (v === 0 || !Number.isFinite(v)) return v === 0 ? "0" : v > 0 ? "∞" : "-∞";
  return Math.abs(v) >= 1e-3 && Math.abs(v) < 1e6 ? v.toPrecision(4) : v.toExponential(2);
}, true];
const cosine = [(v) => v.toFixed(6), true];
const text = [String, false];
const lines = [String, false, "lines"];
const place = [(v) => (v ? "delegate" : "CPU"), false];

// Column heads and formats, in order. A column marked "if it varies" is left out where all rows agree.
const VIEWS = {
  operators: [
    ["#", "operator_index", whole], ["operator", "operator", text], ["verdict", "verdict", text],
    ["introduced dB", "introduced_snr_db", db], ["steps", "introduced_steps", real],
    ["alone, outputs dB", "effect_snr_db", db], ["status", "status", text], ["total dB", "snr_db", db], ["max abs", "max_abs", real], ["mean abs", "mean_abs", real], ["cosine", "cosine", cosine],
    ["mse", "mse", real], ["runs on", "delegated", place], ["target", "target", text], ["shape", "shape", text],
    ["dtype", "dtype", text], ["handle", "debug_handle", whole], ["output", "output_index", whole, "if it varies"],
    ["sample", "sample", whole, "if it varies"], ["reference", "reference", text, "if it varies"],
    ["masked by", "masked_by", text], ["elements masked", "masked_elements", whole, "if it varies"],
    ["introduced with", "introduced_spans", text], ["why", "why", text],
    ["module", "module_path", text], ["written at", "stack_trace", text],
  ],
  outputs: [
    ["rung", "rung", text], ["output", "output", text], ["sample", "sample_name", text], ["status", "status", text],
    ["SNR dB", "snr_db", db], ["from the rung before", "previous_snr_db", db], ["max abs", "max_abs", real],
    ["mean abs", "mean_abs", real], ["cosine", "cosine", cosine], ["mse", "mse", real], ["label", "label", whole], ["top-1 eager", "top1_reference", whole],
    ["top-1 here", "top1_actual", whole], ["shape", "shape", text],
  ],
  profile: [
    ["event", "event", text], ["p50", "p50", real], ["unit", "unit", text], ["p10", "p10", real], ["p90", "p90", real],
    ["mean", "mean", real], ["min", "minimum", real], ["max", "maximum", real], ["count", "count", whole],
    ["runs on", "delegate", place],
  ],
  delegation: [
    ["operator", "operator", text], ["delegated", "occurrences_delegated", whole],
    ["on CPU", "occurrences_not_delegated", whole], ["what the compiler said", "refusals", lines],
  ],
  commands: [["exit", "exit_code", whole], ["seconds", "seconds", db], ["command", "argv", lines]],
};

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function shape(name, attributes, content = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = content;
  return made;
}

/** Rows as objects: `$name` are indices into the page's strings, a bare value stands for a column of it. */
function unpack(table) {
  const rows = Array.from({ length: table.rows }, () => ({}));
  for (const [key, column] of Object.entries(table)) {
    if (key === "rows") continue;
    const isText = key.startsWith("$");
    const name = isText ? key.slice(1) : key;
    rows.forEach((row, i) => {
      const value = Array.isArray(column) ? column[i] : column;
      row[name] = value === null ? null : isText ? strings[value] : Number(value);
    });
  }
  return rows;
}

const unpacked = new Map();
function rowsOf(cell, kind) {
  const key = `${cell.id} ${kind}`;
  if (!unpacked.has(key)) {
    const data = JSON.parse(cell.querySelector("script.data").textContent);
    unpacked.set(key, data[kind] ? unpack(data[kind]) : []);
  }
  return unpacked.get(key);
}

/** Undefined values go last in either direction. */
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
  const columns = VIEWS[kind].filter(([, name, , only]) => name in rows[0] && (!only || varies(name)));
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
    const made = element("td", { class: right ? "n" : style || "" }, value === null ? NULL : format(value));
    if (right && value !== null) made.title = String(value);
    return made;
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

/** Inputs that narrow a table, and the predicate they stand for. */
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

/** Total and introduced SNR of every compared operator along the graph; the others are ticks on the rail below. */
function drawDepth(figure) {
  const cell = figure.closest(".cell");
  const rows = rowsOf(cell, "operators");
  const width = Math.max(260, figure.clientWidth), height = 190;
  const [left, right, top, bottom] = [34, 8, 10, 34];
  const compared = rows.filter((row) => row.snr_db !== null);
  const ceiling = 100; // an exact operator's hundreds of dB would flatten every other
  const introduced = rows.filter((row) => (row.introduced_snr_db ?? null) !== null);
  const drawn = [...compared.map((row) => row.snr_db), ...introduced.map((row) => row.introduced_snr_db)];
  const low = Math.min(0, ...drawn.map((v) => Math.max(-60, v)));
  const high = Math.min(ceiling, Math.max(20, ...drawn));
  const last = Math.max(1, ...rows.map((row) => row.operator_index));
  const x = (row) => left + (width - left - right) * row.operator_index / last;
  const clip = (v) => Math.min(high, Math.max(low, v));
  const y = (v) => top + (height - top - bottom) * (high - clip(v)) / (high - low);

  const others = rows.length - compared.length;
  const summary = `${compared.length} operators with an SNR` + (others ? `, ${others} without (ticks below)` : "");
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": summary });
  const step = high - low > 60 ? 20 : 10;
  for (let v = Math.ceil(low / step) * step; v <= high; v += step) {
    svg.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) }));
    svg.append(shape("text", { x: left - 7, y: y(v) + 4, "text-anchor": "end" }, v));
  }
  for (const sample of new Set(compared.map((row) => row.sample))) {
    const points = compared.filter((row) => row.sample === sample).map((row) => [x(row), y(row.snr_db)]);
    svg.append(shape("polyline", { class: "trace", points: points.join(" ") }));
  }
  for (const row of introduced) {
    const v = row.introduced_snr_db;
    const kind = row.verdict === "introduced" ? "own guilty" : "own";
    svg.append(shape("circle", { class: kind, cx: x(row), cy: y(v), r: row.verdict === "introduced" ? 3 : 1.9 }));
  }
  for (const row of rows) {
    svg.append(row.snr_db === null
      ? shape("line", { class: "rail", x1: x(row), x2: x(row), y1: height - bottom + 7, y2: height - bottom + 12 })
      : shape("circle", { class: clip(row.snr_db) === row.snr_db ? "" : "clipped", cx: x(row), cy: y(row.snr_db), r: 2.3 }));
  }
  const level = (row) => row.introduced_snr_db ?? row.snr_db;
  const worst = [...introduced, ...compared].filter((row) => row.operator === figure.dataset.worst)
    .sort((a, b) => level(a) - level(b))[0];
  if (worst) {
    const [cx, cy] = [x(worst), y(level(worst))];
    const label = `${worst.operator} ${db[0](level(worst))} dB`;
    const [side, anchor] = cx + 7 * label.length > width ? [-6, "end"] : [6, "start"]; // 7 px a character at most
    const below = cy < height - bottom - 20;
    const name = { class: "worst-name", x: cx + side, y: cy + (below ? 15 : -8), "text-anchor": anchor };
    svg.append(shape("circle", { class: "worst", cx, cy, r: 4 }));
    svg.append(shape("text", name, label));
  }
  svg.append(shape("text", { x: left, y: height - 6 }, "first operator"));
  svg.append(shape("text", { x: width - right, y: height - 6, "text-anchor": "end" }, "last"));
  const cursor = shape("line", { class: "cursor", y1: top, y2: height - bottom + 12, visibility: "hidden" });
  svg.append(cursor);

  const readout = element("p", { class: "readout" }, summary);
  const nearest = (event) => {
    const at = (event.clientX - svg.getBoundingClientRect().left) * width / svg.getBoundingClientRect().width;
    return rows.reduce((best, row) => (Math.abs(x(row) - at) < Math.abs(x(best) - at) ? row : best));
  };
  svg.addEventListener("pointermove", (event) => {
    const row = nearest(event);
    cursor.setAttribute("x1", x(row));
    cursor.setAttribute("x2", x(row));
    cursor.setAttribute("visibility", "visible");
    const own = (row.introduced_snr_db ?? null) === null ? "" : `, introduced ${db[0](row.introduced_snr_db)} dB`;
    const found = row.snr_db === null ? row.status : `total ${db[0](row.snr_db)} dB${own}, ${row.verdict}`;
    readout.textContent = `${row.operator_index} ${row.operator}: ${found}, ${row.target ?? NULL}`;
  });
  svg.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    readout.textContent = summary;
  });
  svg.addEventListener("click", (event) => showOperator(cell, nearest(event).operator_index));
  figure.replaceChildren(element("figcaption", {}, "SNR along the graph, dB: ",
    element("span", { class: "key" }, "total"), ...(introduced.length ? [" ", element("span", { class: "key own" }, "introduced")] : [])), svg, readout);
}

function showOperator(cell, index) {
  const panel = cell.querySelector('[data-table="operators"]');
  panel.open = true;
  drawTable(panel);
  for (const line of panel.querySelectorAll("tr.picked")) line.classList.remove("picked");
  const found = panel.querySelectorAll(`tr[data-operator="${index}"]`);
  for (const line of found) line.classList.add("picked");
  found[0]?.scrollIntoView({ block: "center" });
}

function filterCells(form) {
  const wanted = form.elements.text.value.trim().toLowerCase();
  const outcome = form.elements.outcome.value;
  let shown = 0;
  const all = document.querySelectorAll(".cell");
  for (const cell of all) {
    const words = [...cell.querySelectorAll("header, .reason, .error")].map((part) => part.textContent).join(" ");
    cell.hidden = !words.toLowerCase().includes(wanted) || (outcome !== "" && cell.dataset.outcome !== outcome);
    document.querySelector(`.matrix a[href="#${cell.id}"]`).classList.toggle("faded", cell.hidden);
    shown += !cell.hidden;
  }
  form.querySelector("output").textContent = shown === all.length ? "" : `${shown} of ${all.length}`;
}

document.addEventListener("toggle", (event) => {
  if (event.target.open && event.target.dataset.table) drawTable(event.target);
}, true);
document.querySelectorAll(".panel[data-table][open]").forEach(drawTable); // a restored page opens them by itself

const figures = document.querySelectorAll(".depth");
const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    seen.unobserve(target);
    drawDepth(target);
  }
}, { rootMargin: "600px" });
figures.forEach((figure) => seen.observe(figure));
window.addEventListener("resize", () => figures.forEach((figure) => figure.firstChild && drawDepth(figure)));
window.addEventListener("beforeprint", () => figures.forEach(drawDepth));

const form = document.getElementById("filter");
if (form) {
  form.hidden = false;
  form.addEventListener("input", () => filterCells(form));
  form.addEventListener("submit", (event) => event.preventDefault());
  // A link to a cell that the filter hides would lead nowhere.
  window.addEventListener("hashchange", () => {
    if (document.getElementById(location.hash.slice(1))?.hidden) {
      form.reset();
      filterCells(form);
      document.getElementById(location.hash.slice(1)).scrollIntoView();
    }
  });
}
