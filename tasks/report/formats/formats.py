"""The formats in which `qnnsweep report` writes a run for other tools."""

from collections.abc import Callable, Mapping, Sequence

from tasks.records import RunFacts
from tasks.records.tables import Row
from tasks.report.formats.benchmark_database import benchmark_database
from tasks.report.formats.github import github
from tasks.report.formats.junit import junit
from tasks.report.formats.names import Format
from tasks.report.formats.suite import suite

FORMATS: dict[Format, Callable[[RunFacts, Mapping[str, Sequence[Row]]], str]] = {
    Format.junit: junit,
    Format.hud: benchmark_database,
    Format.suite: suite,
    Format.github: github,
}
"""Per format, the function that returns a run as text. It gets the run's facts and rows."""
