// What all rooms of the report's script share: formats, elements, and the page's own JSON read back.
"use strict";

const NULL = "–";
const SVG = document.querySelector("svg").namespaceURI;
const pool = JSON.parse(document.getElementById("pool").textContent);

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

/** Rows as objects: `$name` are indices into the pool's texts, `@` a column of the pool, a bare value one for all rows. */
function unpack(table) {
  const rows = Array.from({ length: table.rows }, () => ({}));
  for (const [key, told] of Object.entries(table)) {
    if (key === "rows") continue;
    const shared = key.startsWith("@");
    const column = shared ? pool.columns[told] : told;
    const isText = key.startsWith("$", shared ? 1 : 0);
    const name = key.replace(/^@?\$?/, "");
    rows.forEach((row, i) => {
      const value = shared ? column[i] : column;
      row[name] = value === null ? null : isText ? pool.strings[value] : Number(value);
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

/** A long name with places to break it, behind its underscores and dots. */
function breakable(name) {
  return name.split(/(?<=[_.])/).flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));
}
