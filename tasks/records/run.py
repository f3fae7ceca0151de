"""The facts of one run."""

from dataclasses import dataclass

from tasks.records.stages import Toolchain


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """What is known of a run as a whole."""

    run_id: str
    started: str
    """ISO 8601, with the offset."""
    seconds: float
    command: tuple[str, ...]
    """The command line, one entry an argument."""
    toolchain_calls: int
    """Export, quantize and lower calls that really ran."""
    reused: int
    """Results taken from the cache instead."""
    toolchain: Toolchain | None
    """None when nothing could be asked of it."""
    tables: str
    """Folder of the Parquet tables, as a person would type it."""
    report: str
    """Path of the HTML report, as a person would type it."""
