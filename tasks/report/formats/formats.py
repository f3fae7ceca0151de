"""The formats in which `qnnsweep report` writes a run for other tools."""

from collections.abc import Callable, Mapping, Sequence

from qnnsweep.tasks.records import RunFacts
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.report.formats.benchmark_database import benchmark_database
from qnnsweep.tasks.report.formats.github import github
from qnnsweep.tasks.report.formats.junit import junit
from qnnsweep.tasks.report.formats.names import Format
from qnnsweep.tasks.report.formats.suite import suite

FORMATS: dict[Format, Callable[[RunFacts, Mapping[str, Sequence[Row]]], str]] = {
    Format.junit: junit,
    Format.hud: benchmark_database,
    Format.suite: suite,
    Format.github: github,
}
"""Per format, the function that returns a run as text. It gets the run's facts and rows."""
