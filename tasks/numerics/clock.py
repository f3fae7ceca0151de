"""The clocks of runtimes. Planning imports this module, so it imports no NumPy, as `timing.py` does."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """The clock by which a runtime times a program and its kernels. `ticks`: the number of its ticks per `unit`."""

    unit: str
    ticks: float


MICROSECONDS = Clock(unit="us", ticks=1000.0)
"""The clock of ExecuTorch's runtime on Linux and Android, which logs nanoseconds."""
