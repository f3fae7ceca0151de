"""The facts of one run."""

from dataclasses import dataclass

from qnnsweep.tasks.records.stages import Toolchain


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """The facts of a run as a whole."""

    run_id: str
    started: str  # in ISO 8601, with the time zone's offset
    seconds: float
    command: tuple[str, ...]  # the arguments of the command line, a text that is shown and never run
    toolchain_calls: int  # calls of export, quantize and lower that ran
    reused: int  # results that were read from the cache instead of computed
    toolchain: Toolchain | None  # None if no cell needed it
    tables: str  # the path of the folder of the Parquet tables, as a user would type it
    report: str  # the path of the HTML report, in the same form
    cells: str = "{}"
    """Of a sweep: the values of its cells in JSON, as `qnnsweep.conf.recompare.recorded` returns them. No
    code that they name is run."""
