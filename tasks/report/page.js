// The functions that all parts of the report's script use: for formats, elements, and the page's JSON data.
const NULL = "–";
const SVG = document.querySelector("svg").namespaceURI;
// What cells share, and the data of every cell: gzip of JSON, because the page of 500 cells would be 20 MB without it.
const packed = Uint8Array.from(atob(document.getElementById("shared").textContent), (letter) => letter.charCodeAt(0));
const shared = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();

// The formats of columns: [format, aligned right]. A format is called with defined values only.
const whole = [(v) => v.toLocaleString("en"), true];
const db = [(v) => (Number.isFinite(v) ? v.toFixed(1) : v > 0 ? "∞" : "-∞"), true];
const real = [(v) => {
  if (v === 0 || !Number.isFinite(v)) return v === 0 ? "0" : v > 0 ? "∞" : "-∞";
  return Math.abs(v) >= 1e-3 && Math.abs(v) < 1e6 ? v.toPrecision(4) : v.toExponential(2);
}, true];
const cosine = [(v) => v.toFixed(6), true];
const mebibytes = [(v) => (v / 2 ** 20).toFixed(0), true];
const text = [String, false];
const lines = [String, false, "lines"];
const place = [(v) => (v ? "delegate" : "CPU"), false];

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function shape(name, attributes, content = "") {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = content;
  return node;
}

/** Return rows as objects. tasks/report/data.py describes the keys of a table and the strings that cells share. */
function unpack(table) {
  const rows = Array.from({ length: table.rows }, () => ({}));
  for (const [key, stored] of Object.entries(table)) {
    if (key === "rows") continue;
    const isColumn = key.startsWith("@");
    const column = isColumn ? shared.columns[stored] : stored;
    const isText = key.startsWith("$", isColumn ? 1 : 0);
    const name = key.replace(/^@?\$?/, "");
    rows.forEach((row, i) => {
      const value = isColumn ? column[i] : column;
      row[name] = value === null ? null : isText ? shared.strings[value] : Number(value);
    });
  }
  return rows;
}

const dataOf = (cell) => shared.cells[cell.id.replace("cell-", "")];

const unpacked = new Map();
function rowsOf(cell, kind) {
  const key = `${cell.id} ${kind}`;
  if (!unpacked.has(key)) {
    const data = dataOf(cell);
    unpacked.set(key, data[kind] ? unpack(data[kind]) : []);
  }
  return unpacked.get(key);
}

/** Return the label of a part of a cell. No two parts of the page have the same label. */
function labelOf(cell, part) {
  return `${part} of ${cell.querySelector(".permalink").id}`;
}

/** Return a long name with line-break opportunities after its underscores and dots. */
function breakable(name) {
  return name.split(/(?<=[_.])/).flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));
}
