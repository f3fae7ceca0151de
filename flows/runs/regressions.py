"""The regressions of a run, as a table for the terminal and as Markdown for Prefect."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from qnnsweep.flows.runs import case_history
from qnnsweep.tasks.numerics.trend import BAD
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.records.vocabulary import CASE_STATES
from qnnsweep.tasks.report.format import markdown_table, plain_table, plural, printable
from qnnsweep.tasks.report.formats.cells import other_toolchain

_COLUMNS = ("cell", "worse", "is", "was", "since", "changed then")


def count(trends: Sequence[Row], verdict: str = "regressed") -> int:
    """Return the number of series with this verdict. `regressed` excludes series that were bad before this run."""
    return sum(row["verdict"] == verdict for row in trends)


def regressions_table(trends: Sequence[Row]) -> Table | None:
    """Return a table with one line per worse series, or None if no series is worse. New regressions are first."""
    lines = _lines(trends)
    if not lines:
        return None
    table = plain_table(*_COLUMNS, right=("is", "was"), title=_title(trends))
    for new, line in lines:
        table.add_row(*map(Text, line), style="bold red" if new else "dim")
    return table


def regressions_markdown(trends: Sequence[Row]) -> str:
    """Return the table of regressions as Markdown, or an empty string if no series is worse."""
    lines = _lines(trends)
    if not lines:
        return ""
    return f"## {_title(trends)}\n\n{markdown_table(_COLUMNS, (line for _, line in lines))}\n"


def _title(trends: Sequence[Row]) -> str:
    old = count(trends, "still_bad")
    return f"{plural(count(trends), 'regression')}" + (f", {old} from before" if old else "")


def _lines(trends: Sequence[Row]) -> list[tuple[bool, list[str]]]:
    """Return a pair per bad series: whether it regressed in this run, and its `_COLUMNS`. New regressions are first."""
    lines: list[tuple[bool, list[str]]] = []
    for row in sorted((row for row in trends if row["verdict"] in BAD), key=lambda row: row["verdict"] != "regressed"):
        names = (row["model"], row["scheme"], row["soc"], *other_toolchain(row).values())
        cell = " · ".join(filter(None, (*names, row["farm"] or row["device"])))
        worse = " ".join(filter(None, (row["operator"], row["step"], row["series"])))
        numbers = (with_unit(row[name], row["unit"]) for name in ("value", "level"))
        changed = ", ".join(row["changed"]) or "nothing known"
        columns = [printable(cell), printable(worse), *numbers, row["first_bad_run"], printable(changed)]
        lines.append((row["verdict"] == "regressed", columns))
    return lines


def with_unit(value: float | str | None, unit: str) -> str:
    if value is None or isinstance(value, str):
        return value or "–"
    if unit == case_history.SERIES:
        return [*CASE_STATES][int(value)]
    number = f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"
    return number if unit in ("1", "") else f"{number} {unit}"
