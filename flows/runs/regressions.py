"""The regressions of a run, as a table for the terminal and as Markdown for Prefect."""

from rich.table import Table
from rich.text import Text

from qnnsweep.flows.runs import case_history
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.records.vocabulary import CASE_STATES
from qnnsweep.tasks.report.counts import Counts
from qnnsweep.tasks.report.format import markdown_table, plain_table, printable
from qnnsweep.tasks.report.formats.cells import other_toolchain

_COLUMNS = ("cell", "worse", "is", "was", "since", "changed then")


def regressions_table(counts: Counts) -> Table | None:
    """Return a table with one line per worse series, or None if no series is worse. New regressions are first."""
    lines = _lines(counts)
    if not lines:
        return None
    table = plain_table(*_COLUMNS, right=("is", "was"), title=counts.regressions_in_words())
    for new, line in lines:
        table.add_row(*map(Text, line), style="bold red" if new else "dim")
    return table


def regressions_markdown(counts: Counts) -> str:
    """Return the table of regressions as Markdown, or an empty string if no series is worse."""
    lines = _lines(counts)
    if not lines:
        return ""
    table = markdown_table(_COLUMNS, (line for _, line in lines))
    return f"## {counts.regressions_in_words()}\n\n{table}\n"


def _lines(counts: Counts) -> list[tuple[bool, list[str]]]:
    """Return a pair per bad series: whether it regressed in this run, and its `_COLUMNS`. New regressions are first."""
    lines: list[tuple[bool, list[str]]] = []
    worse = [row for rows in (*counts.regressed.values(), *counts.still_bad.values()) for row in rows]
    for row in sorted(worse, key=lambda row: row["verdict"] != "regressed"):
        numbers = (with_unit(row[name], row["unit"]) for name in ("value", "level"))
        changed = ", ".join(row["changed"]) or "nothing known"
        columns = [
            cell_in_words(row),
            printable(what_is_worse(row)),
            *numbers,
            row["first_bad_run"],
            printable(changed),
        ]
        lines.append((row["verdict"] == "regressed", columns))
    return lines


def cell_in_words(row: Row) -> str:
    """Return the names of the cell of a row of `trends`, on one line."""
    names = (row["model"], row["scheme"], row["soc"], *other_toolchain(row).values())
    return printable(" · ".join(filter(None, (*names, row["farm"] or row["device"]))))


def what_is_worse(row: Row) -> str:
    """Return the operator or step of a row of `trends`, if it is about one, and its series."""
    return " ".join(filter(None, (row["operator"], row["step"], row["series"])))


def with_unit(value: float | str | None, unit: str) -> str:
    if value is None or isinstance(value, str):
        return value or "–"
    if unit == case_history.SERIES:
        return [*CASE_STATES][int(value)]
    number = f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"
    return number if unit in ("1", "") else f"{number} {unit}"
