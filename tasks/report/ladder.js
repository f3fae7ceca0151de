// The drawing in the ladder of final outputs: per rung, the lowest and the median SNR on a common axis.

const TRACK = { width: 112, height: 30, margin: 9 };

/** Return the number that the template wrote into a cell of the table; null for “–”. */
function writtenNumber(tableCell) {
  const written = tableCell.textContent.replaceAll(",", "");
  return written === NULL ? null : Number(written.replace("∞", "Infinity"));
}

/** Return the ends of the axis in dB. The rung exported is nearly exact: its SNR would flatten all others. */
function axisOf(steps) {
  const finite = steps.filter(({ rung }) => rung !== "exported").flatMap(({ lowest, median }) => [lowest, median])
    .filter(Number.isFinite);
  const high = 1.1 * Math.max(20, ...finite);
  return [5 * Math.floor(Math.min(0, ...finite) / 5), Math.min(CEILING, 5 * Math.ceil(high / 5))];
}

/** Return one rung's part of the drawing: its marks, and the path from the rung above and to the rung below. */
function trackOf(step, above, below, x, clipped) {
  const { width, height } = TRACK, middle = height / 2;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
  svg.append(shape("line", { class: "grid", x1: x(0), x2: x(0), y1: 0, y2: height + 1 }));
  if (step.lowest === null) return svg;
  const at = x(step.lowest);
  const half = (other) => (at + x(other.lowest)) / 2;
  if (above) svg.append(shape("line", { class: "path", x1: half(above), y1: 0, x2: at, y2: middle }));
  if (below) svg.append(shape("line", { class: below.worst ? "path worst" : "path", x1: at, y1: middle, x2: half(below), y2: height + 1 }));
  if (step.median !== null) {
    svg.append(shape("line", { class: "spread", x1: at, x2: x(step.median), y1: middle, y2: middle }));
    svg.append(shape("line", { class: "median", x1: x(step.median), x2: x(step.median), y1: middle - 5, y2: middle + 5 }));
  }
  svg.append(step.beside
    ? shape("path", { class: "beside", d: `M${at} ${middle - 4.5}l4.5 4.5l-4.5 4.5l-4.5 -4.5z` })
    : shape("circle", { class: clipped(step.lowest) ? "clipped" : "", cx: at, cy: middle, r: 3.5 }));
  return svg;
}

/** Add the drawing to the table of the rungs. */
function drawLadder(table) {
  if (table.querySelector(".track")) return;
  const bodies = [...table.tBodies].map((body) => [...body.rows].slice(1).map((row) => ({
    row, rung: row.cells[0].textContent, lowest: writtenNumber(row.cells[1]), median: writtenNumber(row.cells[2]),
    worst: row.className === "worst", beside: row.className === "beside",
  })));
  const [low, high] = axisOf(bodies.flat());
  const clip = (value) => Math.min(high, Math.max(low, value));
  const x = (value) => TRACK.margin + (TRACK.width - 2 * TRACK.margin) * (clip(value) - low) / (high - low);
  for (const steps of bodies) {
    const path = steps.filter((step) => !step.beside && step.lowest !== null);
    for (const step of steps) {
      const position = path.indexOf(step);
      const track = trackOf(step, path[position - 1], position < 0 ? undefined : path[position + 1], x, (value) => clip(value) !== value);
      if (step.worst) track.querySelector(".path")?.classList.add("worst");
      step.row.cells[0].after(element("td", { class: "track" }, track));
    }
  }
  for (const row of table.querySelectorAll(".eager")) row.cells[0].after(element("td", { class: "track" }));
  table.tHead.rows[0].cells[0].after(element("th", { scope: "col", class: "axis" },
    element("div", {}, element("span", {}, String(low)), element("span", {}, "SNR, dB"), element("span", {}, String(high)))));
}
