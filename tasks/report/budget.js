// The error budget of a cell's final outputs: the share of every cause, and the operators with the largest shares.

const FIRST_OPERATORS = 12; // until the button asks for all

const percent = (share) => `${(100 * share).toFixed(1)} %`;
const decibels = (value) => (value === null ? NULL : db[0](value));

function swatch(cause) {
  return explain(element("span", { class: "cause-name", "data-cause": cause, tabindex: "0" }, cause), "cause", cause);
}

/** Return a bar on a track from `low` to `high`, with a line at each of the marks. All numbers are shares. */
function shareBar(cause, from, share, [low, high], marks) {
  const at = (value) => (100 * (value - low) / (high - low)).toFixed(2);
  return element("td", { class: "track" },
    ...marks.map((mark) => element("i", { style: `left:${at(mark)}%` })),
    element("span", {
      class: "share", "data-cause": cause,
      style: `left:${at(from)}%;width:${(at(from + share) - at(from)).toFixed(2)}%`,
    }));
}

function head(...columns) {
  return element("thead", {}, element("tr", {}, ...columns.map(([title, style, term]) =>
    title ? explain(element("th", { scope: "col", class: style }, title), "term", term) : element("td"))));
}

/** Return the table of the totals. Each bar begins where the bar above it ends, so that the last bar ends at 100 %. */
function totalsTable(totals) {
  const ends = [0];
  for (const { share } of totals) ends.push(ends.at(-1) + share);
  const bounds = [0, Math.max(1, ...ends)];
  const lines = totals.map((row, i) => element("tr", { "data-cause": row.cause },
    element("th", { scope: "row" }, swatch(row.cause)),
    shareBar(row.cause, ends[i], row.share, bounds, [0, 1]),
    element("td", { class: "n strong" }, percent(row.share)),
    element("td", { class: "n" }, decibels(row.alone_snr_db)),
    element("td", { class: "n" }, decibels(row.without_snr_db))));
  const all = element("tr", {}, element("th", { scope: "row" }, "all"), element("td", {}),
    element("td", { class: "n strong" }, percent(ends.at(-1))), element("td", {}), element("td", {}));
  return element("table", {},
    head(["cause", ""], ["", ""], ["share", "n", "share"],
      ["alone, dB", "n", "alone"], ["without, dB", "n", "without"]),
    element("tbody", {}, ...lines), element("tfoot", {}, all));
}

/** Return the table of the operators with the largest shares. */
function operatorsTable(cell, rows) {
  const largest = Math.max(...rows.map((row) => row.share + (row.share_error ?? 0)));
  const lines = rows.map((row) => {
    const name = breakable(row.module_path || row.operator);
    const known = row.operator_index !== null;
    const margin = row.share_error ? ` ± ${(100 * row.share_error).toFixed(1)}` : "";
    return element("tr", {},
      element("th", { scope: "row" },
        known ? element("a", { href: `#${cell.id}/operator-${row.operator_index}` }, ...name) : element("span", {}, ...name),
        element("small", {}, ...(known ? breakable(row.operator) : ["input of the model"]))),
      element("td", {}, swatch(row.cause)),
      shareBar(row.cause, 0, row.share, [0, largest], []),
      element("td", { class: "n strong" }, (100 * row.share).toFixed(1), element("small", {}, margin), " %"),
      element("td", { class: "n" }, decibels(row.alone_snr_db)),
      element("td", { class: "n" }, decibels(row.without_snr_db)));
  });
  return element("table", {},
    element("caption", {}, "Operators with the largest shares"),
    head(["module, operator", ""], ["cause", ""], ["", ""],
      ["share", "n", "share"],
      ["alone, dB", "n", "alone"], ["without, dB", "n", "without"]),
    element("tbody", {}, ...lines));
}

/** Return the choice of the final output; null if there is only one. */
function outputChoice(figure, rows, chosen) {
  const outputs = new Map(rows.map((row) => [row.output_index, row.output]));
  if (outputs.size < 2) return null;
  const select = element("select", { "aria-label": "Final output" }, ...[...outputs].map(([index, name]) => element("option", { value: index }, name)));
  select.value = chosen;
  select.addEventListener("change", () => {
    figure.dataset.output = select.value;
    drawBudget(figure);
    figure.querySelector("select").focus();
  });
  return select;
}

/** Draw the budget of one final output, first that with the lowest SNR: the totals here, and the operators beside them. */
function drawBudget(figure) {
  const cell = figure.closest(".cell");
  const rows = rowsOf(cell, "budget");
  const known = rows.some((row) => String(row.output_index) === figure.dataset.output);
  const chosen = known ? Number(figure.dataset.output) : rows[0].output_index;
  const ofOutput = rows.filter((row) => row.output_index === chosen);
  const totals = ofOutput.filter((row) => row.operator === null);
  const operators = ofOutput.filter((row) => row.operator !== null);
  const caption = element("figcaption", {}, "Error budget of the final output ");
  const beside = cell.querySelector(".shares");
  const choice = outputChoice(figure, rows, chosen);
  const { output } = ofOutput[0]; // torch.export calls the only output of a module "output"
  caption.append(choice ?? (output === "output" ? "" : element("code", {}, output)));
  if (totals.some((row) => row.share === null)) {
    const why = `Output ${ofOutput[0].output} has no budget: its error is zero or not finite.`;
    beside.replaceChildren();
    return figure.replaceChildren(caption, element("p", { class: "readout" }, why));
  }
  const method = `Of sample ${totals[0].sample}: the program was run with causes left out, and with one cause alone.`;
  const totalsHost = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": labelOf(cell, "Causes of the error") },
    totalsTable(totals));
  figure.replaceChildren(caption, totalsHost, element("p", { class: "readout" }, method));
  beside.replaceChildren(...(operators.length ? operatorsPart(figure, cell, operators) : []));
}

/** Return the table of operators, with a button for those that are not shown yet. */
function operatorsPart(figure, cell, operators) {
  const all = "all" in figure.dataset || operators.length <= FIRST_OPERATORS;
  const parts = [operatorsTable(cell, all ? operators : operators.slice(0, FIRST_OPERATORS))];
  if (!all) {
    const more = element("button", { type: "button" }, `Show all ${operators.length}`);
    more.addEventListener("click", () => {
      figure.dataset.all = "";
      drawBudget(figure);
      cell.querySelectorAll(".shares tbody tr")[FIRST_OPERATORS].querySelector("a")?.focus();
    });
    parts.push(more);
  } else if (Number(figure.dataset.leftOut)) {
    parts.push(element("p", { class: "readout" }, `The table budget has ${whole[0](Number(figure.dataset.leftOut))} smaller shares.`));
  }
  return parts;
}
