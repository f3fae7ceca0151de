"""What `qnnsweep plan` prints: a line per cell, and what the run is expected to cost."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from qnnsweep.tasks.report.one_line_table import OneLineTable, Row

if TYPE_CHECKING:
    from qnnsweep.flows.forecasts.costs import Forecast


def plan_table(cells: Sequence[Mapping[str, str | bool | None]], expected: "Forecast | None") -> OneLineTable:
    """Return a table with one line per cell. The column `compiled` is shown only if there are earlier runs."""
    from qnnsweep.conf.names import AXES
    from qnnsweep.conf.toolchains import DEFAULT_TOOLCHAIN

    others = any(cell["toolchain"] != DEFAULT_TOOLCHAIN for cell in cells)
    axes = [axis for axis in AXES if axis != "toolchain" or others]
    impossible = sum(cell["impossible"] is not None for cell in cells)
    wrong = sum(cell.get("error") is not None for cell in cells)
    return OneLineTable(
        columns=[*axes, *(["compiled"] if expected else [])],
        rows=[_row(cell, axes) for cell in cells],
        dropped_first=[axis for axis in ("backend", "device") if len({cell[axis] for cell in cells}) == 1],
        caption=f"{len(cells) - impossible} to run, {impossible} impossible"
        + (f", {wrong} will fail" if wrong else ""),
    )


def _row(cell: Mapping[str, str | bool | None], axes: Sequence[str]) -> Row:
    style = "dim" if cell["impossible"] else ""
    values = {axis: Text(str(cell[axis]), style) for axis in axes} | {"compiled": Text("↺" if cell["compiled"] else "")}
    note = f"impossible: {cell['impossible']}" if cell["impossible"] else str(cell.get("error") or "")
    return Row(values=values, note=Text(note, style))


def forecast_line(expected: "Forecast") -> Text:
    from qnnsweep.tasks.report.format import about

    if expected.seconds is None:
        time = f"no estimate of the time, because {expected.unknown} of the cells have no similar cell in these runs"
    else:
        time = f"about {about(expected.seconds)}, if the machine is as busy as in these runs"
    return Text(f" {sum(expected.compiled)} compiled by earlier runs (↺); {time}")
