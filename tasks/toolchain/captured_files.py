"""The files of an execution that was not one of qnnsweep."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class CapturedFiles:
    """The files of a program that was executed elsewhere."""

    program: Path
    etrecord: Path
    etdump: Path
    buffer: Path
    inputs: Path | None
    """None for the representative inputs of the ETRecord."""
    method: str | None
    """The name of the method that was executed; None if only one method of the program computes something."""
