"""Tables for the terminal that are not a run's: a plan, a machine's health."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from conf.plan import AXES
from flows.doctor import Check


def plan_table(cells: Sequence[Mapping[str, str | None]]) -> Table:
    """One line a cell, and how many are possible."""
    possible = sum(cell["impossible"] is None for cell in cells)
    table = _table(*AXES, "note", caption=f"{possible} to run, {len(cells) - possible} impossible")
    for cell in cells:
        style = "" if cell["impossible"] is None else "dim"
        note = "" if cell["impossible"] is None else f"impossible: {cell['impossible']}"
        table.add_row(*(Text(str(cell[axis])) for axis in AXES), Text(note), style=style)
    return table


def checks_table(checks: Sequence[Check]) -> Table:
    table = _table("", "what", "found", "what to do")
    for check in checks:
        mark = Text("✓", "green") if check.ok else Text("✗", "bold red") if check.needed else Text("–", "yellow")
        table.add_row(mark, check.what, Text(check.found), Text("" if check.ok else check.remedy))
    return table


def _table(*columns: str, caption: str | None = None) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
