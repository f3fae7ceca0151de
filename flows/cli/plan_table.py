"""What `qnnsweep plan` prints: a line per cell, and what the run is expected to cost."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from flows.forecast import Forecast


def plan_table(cells: Sequence[Mapping[str, str | bool | None]], expected: "Forecast | None") -> Table:
    """Return a table with one line per cell. The column `compiled` is shown only if there are earlier runs."""
    from conf.names import AXES
    from conf.toolchains import DEFAULT_TOOLCHAIN
    from tasks.report.format import plain_table

    others = any(cell["toolchain"] != DEFAULT_TOOLCHAIN for cell in cells)
    axes = [axis for axis in AXES if axis != "toolchain" or others]
    impossible = sum(cell["impossible"] is not None for cell in cells)
    wrong = sum(cell.get("error") is not None for cell in cells)
    caption = f"{len(cells) - impossible} to run, {impossible} impossible" + (f", {wrong} will fail" if wrong else "")
    known = ("compiled",) if expected else ()
    table = plain_table(*axes, *known, "note", caption=caption)
    for cell in cells:
        note = f"impossible: {cell['impossible']}" if cell["impossible"] else str(cell.get("error") or "")
        compiled = [Text("↺ yes" if cell["compiled"] else "")] if expected else []
        style = "dim" if cell["impossible"] else ""
        table.add_row(*(Text(str(cell[axis])) for axis in axes), *compiled, Text(note), style=style)
    return table


def forecast_line(expected: "Forecast") -> Text:
    from tasks.report.format import about

    if expected.seconds is None:
        time = f"no estimate of the time, because {expected.unknown} of the cells have no similar cell in these runs"
    else:
        time = f"about {about(expected.seconds)}, if the machine is as busy as in these runs"
    return Text(f"{sum(expected.compiled)} compiled by earlier runs; {time}")
