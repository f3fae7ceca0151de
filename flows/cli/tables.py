"""Tables for the terminal: a plan, the checks of a machine, the status of devices, a comparison of runs."""

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from conf.errors import printable
from conf.names import AXES
from flows.cli.devices import DeviceStatus
from flows.runs.diff import Difference
from flows.runs.regressions import with_unit
from tasks.report.format import plural
from tasks.toolchain.backends.backend import DoctorCheck


def plan_table(cells: Sequence[Mapping[str, str | None]]) -> Table:
    """Return a table with one line per cell, and the number of cells that can run."""
    possible = sum(cell["impossible"] is None for cell in cells)
    table = _table(*AXES, "note", caption=f"{possible} to run, {len(cells) - possible} impossible")
    for cell in cells:
        style = "" if cell["impossible"] is None else "dim"
        note = "" if cell["impossible"] is None else f"impossible: {cell['impossible']}"
        table.add_row(*(Text(str(cell[axis])) for axis in AXES), Text(note), style=style)
    return table


def checks_table(checks: Sequence[DoctorCheck]) -> Table:
    table = _table("", "what", "found", "what to do")
    for check in checks:
        mark = Text("✓", "green") if check.ok else Text("✗", "bold red") if check.needed else Text("–", "yellow")
        table.add_row(mark, check.what, Text(check.found), Text("" if check.ok else check.remedy))
    return table


def devices_table(statuses: Sequence[DeviceStatus]) -> Table:
    table = _table(
        "", "device", "by", "SoC asked", "SoC read", "arch", "build", "free", "°C", "battery", "runner", "QNN", "state",
        "what to do",
    )  # fmt: skip
    for status in statuses:
        free = f"busy: {status.busy}" if status.busy else "free"
        state = f"quarantined: {status.quarantined}" if status.quarantined else free
        cells = (
            status.device,
            status.transport,
            status.soc_asked or "any",
            status.soc_read,
            status.arch,
            status.os_build,
            None if status.free_mib is None else f"{status.free_mib / 1024:.1f} GiB",
            None if status.celsius is None else f"{status.celsius:.0f}",
            None if status.battery_percent is None else f"{status.battery_percent} %",
            status.runner,
            status.qnn,
            state if status.reachable else "unreachable",
            status.problem or "",
        )
        mark = Text("✓", "green") if status.usable else Text("✗", "bold red")
        table.add_row(mark, *(Text("–" if cell is None else printable(cell)) for cell in cells))
    return table


def diff_table(difference: Difference) -> Table:
    """Return a table with one line per relevant difference. Each cell starts with a line of its changed inputs."""
    counted = plural(difference.regressions, "regression")
    table = _table(
        "cell",
        "what",
        "before",
        "after",
        "limit",
        "verdict",
        caption=f"{counted}, {difference.run_a} -> {difference.run_b}",
    )
    styles = {"regressed": "bold red", "improved": "green"}
    for pair in difference.cells:
        changes = [change for change in pair.changes if change.verdict not in ("steady", "undefined")]
        cell = _cell_name(pair.cell)
        if pair.changed:
            table.add_row(Text(cell), Text(f"changed: {', '.join(pair.changed)}"))
        for change in sorted(changes, key=lambda change: (*styles, "changed").index(change.verdict)):
            what = f"{change.operator} {change.what}" if change.operator else change.what
            numbers = (with_unit(value, change.unit) for value in (change.before, change.after, change.limit))
            table.add_row(
                Text(cell), Text(what), *map(Text, numbers), Text(change.verdict, styles.get(change.verdict, ""))
            )
    for run, cells in ((difference.run_a, difference.only_in_a), (difference.run_b, difference.only_in_b)):
        for cell in cells:
            table.add_row(Text(_cell_name(cell)), Text(f"only in {run}"))
    return table


def _cell_name(cell: Mapping[str, str | None]) -> str:
    where = cell["farm"] or cell["device"]
    return printable(" · ".join(filter(None, (cell["model"], cell["scheme"], cell["soc"], cell["backend"], where))))


def _table(*columns: str, caption: str | None = None) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
