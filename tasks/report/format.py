"""The display formats of the report and the terminal: rounded numbers, outcomes in words, escaped text, null as “–”."""

import math
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape
from rich.box import SIMPLE_HEAD
from rich.console import JustifyMethod
from rich.table import Table

if TYPE_CHECKING:
    from qnnsweep.tasks.records import RunFacts

# Worst first: name in the tables -> (words, symbol, terminal style).
OUTCOMES = {
    "failed": ("failed", "✗", "bold red"),
    "infrastructure": ("infrastructure", "!", "bold magenta"),
    "out_of_tolerance": ("out of tolerance", "≠", "bold yellow"),
    "impossible": ("impossible", "∅", "dim"),
    "passed": ("passed", "✓", "green"),
}
NULL = "–"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


def printable(text: str) -> str:
    """Return `text` without terminal colours and control characters, except tab and newline."""
    return _CONTROL.sub("", text)


def markdown(text: str) -> str:
    """Return `text` on one line, escaped for Markdown and HTML."""
    return re.sub(r"([\\`*_\[\]|~#<>&])", r"\\\1", " ".join(text.split()))


def words(outcome: str) -> str:
    return OUTCOMES[outcome][0] if outcome in OUTCOMES else outcome


def symbol(outcome: str) -> str:
    return OUTCOMES[outcome][1] if outcome in OUTCOMES else "?"


def note(cell: Mapping[str, Any]) -> str:
    """Return the first line of a cell's reason or error. If an earlier run measured the cell, add that run's id."""
    text = cell["reason"] or (cell["error"] and ": ".join(filter(None, (cell["error_type"], cell["error"])))) or ""
    why = next(iter(printable(text).strip().splitlines()), "")
    measured = cell.get("measured_run")
    earlier = f"measured in {measured}" if measured not in (None, cell.get("run_id")) else ""
    return "; ".join(filter(None, (why, earlier)))


def compared(cell: Mapping[str, Any]) -> bool:
    """Return whether the cell's final outputs were compared. If not, the diagnosis only repeats the reason or error."""
    return cell["final_difference"] is not None


def note_and_diagnosis(cell: Mapping[str, Any]) -> str:
    """Return a cell's note and, if the cell was compared, its diagnosis."""
    diagnosis = cell["diagnosis"] if compared(cell) else None
    return " — ".join(filter(None, (note(cell), printable(diagnosis or ""))))


def artifacts_of(run: "RunFacts") -> str | None:
    """Return where the artifacts of a run are; None if a command finds them without being told."""
    place = run.tables.removesuffix("/tables")
    return None if place == "artifacts" else place


def with_places(cells: Iterable[Mapping[str, Any]], run: "RunFacts") -> list[dict[str, Any]]:
    """Return cells whose diagnoses have a command that can be typed: with the folders and the artifacts of the run.

    The tables have no places, because they are handed on.
    """
    of_repro = [f"--artifacts={place}"] if (place := artifacts_of(run)) else []
    of_repair = [*(word for word in run.command if word.startswith("--config-dir=")), *of_repro]

    def typed(diagnosis: str) -> str:
        for verb, places in (("repair", of_repair), ("repro", of_repro)):
            begin = f"`qnnsweep {verb} "
            diagnosis = diagnosis.replace(begin, "".join([begin, *(f"{shlex.quote(place)} " for place in places)]))
        return diagnosis

    return [{**cell, "diagnosis": cell["diagnosis"] and typed(cell["diagnosis"])} for cell in cells]


def breakable(name: str | None) -> Markup:
    """Return a long name with line-break opportunities after its underscores and dots."""
    return Markup(re.sub(r"([_.])", r"\1<wbr>", str(escape(name or NULL))))  # noqa: S704 - escaped


def verdict(name: str) -> str:
    return name.replace("_", " ")


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def decimal(value: float | None, digits: int = 1) -> str:
    if value is None:
        return NULL
    return f"{value:,.{digits}f}" if math.isfinite(value) else "∞" if value > 0 else "-∞"


def snr(difference: str | None, snr_db: float | None) -> float | None:
    """Return the SNR of outputs in dB: ∞ if they are equal, -∞ if their difference is infinite, None if unknown."""
    return {"none": math.inf, "infinite": -math.inf}.get(difference or "", snr_db)


def interval(low: float | None, high: float | None) -> str:
    """Return the bounds of an interval in parentheses, after a space; nothing if there is no interval."""
    return "" if low is None else f" ({decimal(low)} to {decimal(math.inf if high is None else high)})"


def share_interval(low: float | None, high: float | None) -> str:
    """Return the bounds of an interval of a share, in percent."""
    return "" if low is None or high is None else interval(100 * low, 100 * high)


def lowest(difference: str | None, snr_db: float | None, equal_elements: float | None) -> str:
    """Return the lowest SNR as text. If only outputs of integers differ: their share of equal elements."""
    if difference == "finite" and snr_db is None and equal_elements is not None:
        return f"{percent(equal_elements)} % equal"
    return decimal(snr(difference, snr_db))


def real(value: float | None) -> str:
    return NULL if value is None else f"{value:.3g}"


def integer(value: float | None) -> str:
    return NULL if value is None else f"{int(value):,}"


def kib(value: float | None) -> str:
    return NULL if value is None else decimal(value / 1024, 0 if value >= 10_240 else 1)


def percent(value: float | None) -> str:
    return decimal(None if value is None else 100 * value)


def pair(part: float | None, total: float | None) -> str:
    return NULL if part is None and total is None else f"{integer(part)}/{integer(total)}"


def limited(written: str, limit: str | None) -> str:
    """Return a value with its limit, which is None for a value that is not judged."""
    return written if limit is None else f"{written} ({limit})"


def at_least(limit: float | None, scale: float = 1.0, unit: str = "") -> str | None:
    return None if limit is None else f"≥ {limit * scale:g}{unit}"


def at_most(limit: float | None) -> str | None:
    return None if limit is None else f"≤ {limit:g}"


def milliseconds(value: float | None) -> str:
    """Return a time in the unit in which it has one to three digits before the point."""
    if value is None:
        return NULL
    if value < 1:
        return f"{1000 * value:.3g} µs"
    return f"{value:.3g} ms" if value < 1000 else duration(value / 1000)


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def about(seconds: float) -> str:
    """Return a duration that is only an estimate, such as `25 s`, `4 min` or `1.6 h`."""
    if seconds < 90:
        return f"{max(1, round(seconds / 5) * 5 if seconds > 10 else round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{seconds / 3600:.1f} h"


def markdown_table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return the lines of a Markdown table. The texts of `rows` are escaped."""
    lines = [head, *(map(markdown, row) for row in rows)]
    title, *body = ("| " + " | ".join(line) + " |" for line in lines)
    return "\n".join([title, "|" + " --- |" * len(head), *body])


def plain_table(
    *columns: str, right: Collection[str] = (), caption_justify: JustifyMethod = "left", **options: Any
) -> Table:
    """Return an empty table for the terminal. `right`: the columns that are aligned to the right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption_justify=caption_justify, **options)
    for column in columns:
        # A narrow terminal folds long lines, so that no number and no note is cut.
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table
