// Distributions and series: a cell's latencies as a histogram, and its numbers over the nights as sparklines.

/** Draw the latencies of the shipping program, measured by the runtime's clock, with the percentiles marked. */
function drawLatency(figure) {
  const latency = dataOf(figure.closest(".cell")).latency;
  const width = Math.max(260, figure.clientWidth), height = 84, base = 62;
  const high = Math.max(...latency.bins);
  const span = latency.high - latency.low || 1;
  const x = (v) => 6 + (width - 12) * (v - latency.low) / span;
  const bar = (width - 12) / latency.bins.length;
  const [scale, unit] = latency.unit === "us" ? [1000, "ms"] : [1, latency.unit];
  const written = (v) => `${(v / scale).toPrecision(3)} ${unit}`;
  const summary = `${whole[0](latency.count)} inferences: p10 ${written(latency.p10)}, p90 ${written(latency.p90)}`;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": summary });
  latency.bins.forEach((count, i) => {
    if (!count) return;
    const tall = Math.max(2, 50 * count / high);
    const box = shape("rect", { class: "bin", x: 6 + i * bar + .5, width: Math.max(1, bar - 1), y: base - tall, height: tall });
    const from = latency.low + span * i / latency.bins.length;
    box.append(shape("title", {}, `${count} from ${written(from)} to ${written(from + span / latency.bins.length)}`));
    svg.append(box);
  });
  svg.append(shape("line", { class: "axis", x1: 6, x2: width - 6, y1: base + .5, y2: base + .5 }));
  for (const name of ["p10", "p90"]) {
    svg.append(shape("line", { class: name, x1: x(latency[name]), x2: x(latency[name]), y1: 6, y2: base + 5 }));
  }
  svg.append(shape("text", { x: 6, y: base + 18 }, written(latency.low)));
  svg.append(shape("text", { x: width - 6, y: base + 18, "text-anchor": "end" }, written(latency.high)));
  figure.replaceChildren(element("figcaption", {}, `Inference times of the shipping program by its log${figure.dataset.simulated ? ", in the simulator" : ""}`), svg, element("p", { class: "readout" }, summary));
}

/** Return a sparkline of a series: its level, the noise around it as a band, and the first bad night. */
function sparkline(row) {
  const values = row.values ? row.values.split(" ").map((v) => (v === "-" ? null : Number(v))) : [];
  const runs = row.runs ? row.runs.split(" ") : [];
  const width = 220, height = 44;
  const band = row.level === null ? [] : [row.level - (row.noise ?? 0), row.level + (row.noise ?? 0)];
  const defined = [...values.filter((v) => v !== null), ...band];
  if (!defined.length) return element("span", {}, NULL);
  const low = Math.min(...defined), span = Math.max(...defined) - low || 1;
  const x = (i) => 4 + (width - 8) * (values.length > 1 ? i / (values.length - 1) : .5);
  const y = (v) => height - 6 - (height - 12) * (v - low) / span;
  const svg = shape("svg", {
    class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    "aria-label": `${row.series} over ${values.length} nights, last ${row.value === null ? NULL : real[0](row.value)}`,
  });
  if (band.length) {
    const tall = Math.max(1.5, y(band[0]) - y(band[1]));
    svg.append(shape("rect", { class: "band", x: 0, width, y: y(row.level) - tall / 2, height: tall }));
    svg.append(shape("line", { class: "level", x1: 0, x2: width, y1: y(row.level), y2: y(row.level) }));
  }
  let pieces = "", up = true;
  values.forEach((v, i) => {
    if (v !== null) pieces += `${up ? "M" : "L"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`;
    up = v === null;
  });
  svg.append(shape("path", { class: "nights", d: pieces }));
  const bad = row.first_bad_run ? runs.indexOf(row.first_bad_run) : -1;
  values.forEach((v, i) => {
    const label = shape("title", {}, `${runs[i] ?? ""} ${v === null ? "not defined" : real[0](v)}`);
    if (i === bad) svg.append(shape("line", { class: "bad", x1: x(i), x2: x(i), y1: 1, y2: height - 1 }));
    if (v !== null && (i === bad || i === values.length - 1)) {
      svg.append(shape("circle", { class: i === bad ? "bad" : "last", cx: x(i), cy: y(v), r: 3 }));
    }
    const wide = (width - 8) / Math.max(1, values.length - 1);
    const area = shape("rect", { class: "night", x: x(i) - wide / 2, width: wide, y: 0, height });
    area.append(label);
    svg.append(area);
  });
  return svg;
}

/** Draw the series of a cell, the worst first, with the changes of the first bad night. */
function drawTrends(panel) {
  const host = panel.querySelector(".table-host");
  if (host.dataset.drawn) return;
  host.dataset.drawn = "yes";
  const cell = panel.closest(".cell");
  const brief = (v) => (v === null ? NULL : String(Number(v.toPrecision(3))));
  const noted = (v, unit) => (v === null ? NULL : `${real[0](v)}${unit ? ` ${unit}` : ""}`);
  const heads = ["series", "nights", "this night", "level ± noise", "floor", "verdict", "first bad night", "changed in it"];
  const lines = rowsOf(cell, "trends").map((row) => element("tr", { "data-verdict": row.verdict },
    element("td", {}, row.series, ...(row.operator ? [" of ", ...operatorLinks(cell, row.operator)] : row.step ? [` of ${row.step}`] : [])),
    element("td", {}, sparkline(row), element("small", {}, `${row.nights ?? 0} nights`)),
    element("td", { class: "n" }, noted(row.value, row.unit)),
    element("td", { class: "n" }, row.level === null ? NULL : `${real[0](row.level)} ± ${brief(row.noise)}`),
    element("td", { class: "n" }, brief(row.floor)),
    element("td", { class: "verdict" }, (row.verdict ?? NULL).replaceAll("_", " ")),
    element("td", {}, row.first_bad_run ?? NULL),
    element("td", { class: "lines" }, row.changed || NULL)));
  host.replaceChildren(element("div", { class: "scroll long", tabindex: "0", role: "region", "aria-label": labelOf(panel.closest(".cell"), "Trends over nights") },
    element("table", { class: "trends" },
      element("thead", {}, element("tr", {}, ...heads.map((name) => element("th", { scope: "col" }, element("span", {}, name))))),
      element("tbody", {}, ...lines))));
}
