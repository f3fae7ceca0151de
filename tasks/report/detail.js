// The pictures on the card of an operator: how its error is distributed, how its grid fits, and what is beside it.

const PICTURE = { width: 300, height: 132, top: 8, bottom: 112 };
const MOST_NEIGHBOURS = 4; // on each side

const numbersIn = (written) => (written ? written.split(" ").map(Number) : []);
const short = (value) => {
  const size = Math.abs(value);
  if (size >= 1000 && size < 1e7) return Math.round(value).toLocaleString("en");
  return value && (size >= 1e7 || size < 1e-3) ? value.toExponential(1) : String(Number(value.toPrecision(3)));
};

/** Return a figure with a title, a picture that has a description, and a sentence below it. */
function picture(title, description, shapes, sentence) {
  const svg = shape("svg", { viewBox: `0 0 ${PICTURE.width} ${PICTURE.height}`, role: "img", "aria-label": description });
  svg.append(...shapes);
  return element("figure", {}, element("figcaption", {}, title), svg, element("p", { class: "readout" }, sentence));
}

const baseline = () => shape("line", { class: "axis", x1: 0, x2: PICTURE.width, y1: PICTURE.bottom + .5, y2: PICTURE.bottom + .5 });
const label = (x, anchor, content) => shape("text", { x, y: PICTURE.bottom + 15, "text-anchor": anchor }, content);

/** Return bars over the whole width. A bar that is not zero can always be seen. `marked`: the bar in another colour. */
function bars(values, marked) {
  const largest = Math.max(...values), width = PICTURE.width / values.length, room = PICTURE.bottom - PICTURE.top;
  return values.flatMap((value, i) => {
    if (!value) return [];
    const height = Math.max(1.5, room * value / largest);
    return [shape("rect", { class: i === marked ? "column marked" : "column", x: (i * width + .5).toFixed(1), width: Math.max(1, width - 1).toFixed(1), y: (PICTURE.bottom - height).toFixed(1), height: height.toFixed(1) })];
  });
}

function histogram(detail, unit, elements) {
  const counts = numbersIn(detail.histogram), total = counts.reduce((a, b) => a + b, 0), middle = (counts.length - 1) / 2;
  const largest = short(detail.largest_error);
  const near = 100 * counts[middle] / total;
  return picture("Error of the elements", `Histogram of the errors of ${total} ${elements} from -${largest} to ${largest} ${unit}`,
    [...bars(counts, -1), baseline(), label(0, "start", `−${largest}`), label(PICTURE.width / 2, "middle", "0"), label(PICTURE.width, "end", `${largest} ${unit}`)],
    `${near.toFixed(1)} % of ${whole[0](total)} ${elements} are within ±${short(detail.largest_error / (2 * middle))}.`);
}

function channelPicture(detail, unit) {
  const errors = numbersIn(detail.channel_errors);
  const largest = Math.max(...errors), worst = errors.indexOf(largest);
  const first = Math.floor(worst * detail.channels / errors.length);
  const last = Math.max(first, Math.floor((worst + 1) * detail.channels / errors.length) - 1);
  const name = first === last ? `channel ${first}` : `channels ${first} to ${last}`;
  const typical = [...errors].sort((a, b) => a - b)[Math.floor(errors.length / 2)];
  return picture("Error per channel", `Root mean square error per channel, largest in ${name}`,
    [...bars(errors, worst), baseline(), label(0, "start", "0"), label(PICTURE.width, "end", `channel ${detail.channels - 1}`)],
    `Axis ${detail.channel_axis}. Largest: ${name}, ${short(largest)} ${unit} rms; median ${short(typical)}.`);
}

function rangePicture(detail) {
  const { value_least: low, value_largest: high, grid_least: gridLow, grid_largest: gridHigh } = detail;
  const start = Math.min(low, gridLow), end = Math.max(high, gridHigh), left = 52;
  const at = (value) => left + (PICTURE.width - left) * (value - start) / (end - start || 1);
  const bar = (from, to, y, style) => shape("rect", { class: style, x: at(from).toFixed(1), width: Math.max(2, at(to) - at(from)).toFixed(1), y, height: 20 });
  const used = 100 * (high - low) / (gridHigh - gridLow);
  const beyond = low < gridLow || high > gridHigh;
  return picture("Range of the values and of the grid", `Values from ${short(low)} to ${short(high)}, grid from ${short(gridLow)} to ${short(gridHigh)}`,
    [shape("text", { x: 0, y: 42 }, "grid"), shape("text", { x: 0, y: 76 }, "values"), bar(gridLow, gridHigh, 28, "grid-range"), bar(low, high, 62, "value-range"),
      baseline(), label(left, "start", short(start)), label(PICTURE.width, "end", short(end))],
    `Values ${short(low)} to ${short(high)} use ${used < .1 ? short(used) : used.toFixed(1)} % of the grid, ${short(gridLow)} to ${short(gridHigh)}`
      + (beyond ? "; some are beyond its ends." : "."));
}

function heatPicture(detail, unit) {
  const [largest, ...parts] = numbersIn(detail.heat);
  const { heat_rows: rows, heat_columns: columns } = detail;
  const side = Math.min(PICTURE.height / rows, PICTURE.width / columns);
  const tiles = parts.map((share, i) => shape("rect", {
    class: "tile", x: (i % columns * side).toFixed(1), y: (Math.floor(i / columns) * side).toFixed(1),
    width: side.toFixed(1), height: side.toFixed(1), "fill-opacity": (share / 100).toFixed(2),
  }));
  const frame = shape("rect", { class: "frame", x: 0, y: 0, width: columns * side, height: rows * side });
  return picture("Error over the plane", `Heat map of ${rows} times ${columns} parts of the plane`, [...tiles, frame],
    `From ${short(largest * Math.min(...parts) / 100)} to ${short(largest)} ${unit} rms (the strongest colour).`);
}

/** Return the pictures of an operator's error; a sentence if the page has no details of this operator. */
function detailOf(cell, index) {
  const detail = rowsOf(cell, "details").find((row) => row.operator_index === index);
  if (!detail) {
    const count = rowsOf(cell, "details").length;
    return element("p", { class: "remark" }, count
      ? `The page has the distribution of the error only of the ${count} operators that matter most in this cell.`
      : "This run has no distribution of errors: it needs the error budget (measure.budget) and a capture of the operators.");
  }
  const unit = detail.unit === "steps" ? "steps" : "";
  const masks = operatorsOf(cell).find(([number]) => number === index)[1].find((row) => row.sample === detail.sample)?.masked_by;
  return element("div", { class: "pictures", role: "group", "aria-label": labelOf(cell, `Error of operator ${index}`) },
    histogram(detail, unit, masks ? "used elements" : "elements"), ...(detail.channels > 1 ? [channelPicture(detail, unit)] : []),
    ...(detail.value_least !== null && detail.grid_least !== null ? [rangePicture(detail)] : []), ...(detail.heat ? [heatPicture(detail, unit)] : []),
    element("p", { class: "remark" }, `The error that arises at this operator, on sample ${detail.sample}.`));
}

/** Return the command that writes all elements of the tensors of an operator. */
function tensorsCommand(cell, row) {
  const sample = rowsOf(cell, "details").find((detail) => detail.operator_index === row.operator_index)?.sample ?? row.sample;
  const command = `qnnsweep tensors ${document.body.dataset.run} ${cell.dataset.folder} ${row.operator} --sample=${sample}${document.body.dataset.artifacts}`;
  return element("p", { class: "remark" }, "All elements, on the device and on the host: ", element("code", {}, command));
}

/** Return the operators that this operator reads, and its readers, with the total SNR of each value on its edge. */
function neighboursOf(cell, index) {
  const operators = new Map(operatorsOf(cell));
  const edges = (rows) => rows.find((row) => row.reference === "edge")?.reads;
  const rows = operators.get(index);
  if (edges(rows) === undefined || edges(rows) === null) return "";
  const exists = (number) => operators.has(number) && !operators.get(number).every((row) => FOLDED.includes(row.status) && row.status !== "tuple");
  const sources = numbersIn(edges(rows)).filter(exists);
  const readers = [...operators].filter(([, other]) => numbersIn(edges(other)).includes(index)).map(([number]) => number);
  if (!sources.length && !readers.length) return "";
  const value = (number) => {
    const row = worstOf(operators.get(number));
    return row.snr_db === null ? row.status.replaceAll("_", " ") : `${db[0](row.snr_db)} dB`;
  };
  const node = (number) => {
    const row = worstOf(operators.get(number));
    return element("a", { class: "node", href: `#${cell.id}/operator-${number}`, "data-verdict": row.verdict ?? "" },
      element("span", {}, ...breakable(row.module_path || row.operator)), element("small", {}, ...breakable(row.operator)), verdictMark(row));
  };
  const edge = (number) => element("span", { class: "edge" }, element("b", {}, value(number)));
  const side = (numbers, draw, name) => element("ul", { class: name, "aria-label": name },
    ...numbers.slice(0, MOST_NEIGHBOURS).map((number) => element("li", {}, ...draw(number))),
    ...(numbers.length > MOST_NEIGHBOURS ? [element("li", { class: "remark" }, `and ${numbers.length - MOST_NEIGHBOURS} more`)] : []));
  const row = worstOf(rows);
  return element("div", { class: "neighbours", role: "group", "aria-label": labelOf(cell, `Neighbours of operator ${index}`) },
    side(sources, (number) => [node(number), edge(number)], "reads"),
    element("div", { class: "node here", "data-verdict": row.verdict ?? "" }, element("span", {}, ...breakable(row.operator)), verdictMark(row)),
    side(readers, (number) => [edge(index), node(number)], "read by"));
}

function verdictMark(row) {
  return element("small", { class: "mark" }, row.verdict ? row.verdict.replaceAll("_", " ") : row.status);
}
