"""The records of cures: changes of a scheme that were tried on the host before anybody reads them."""

from dataclasses import dataclass

from qnnsweep.tasks.records.vocabulary import Cause


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A change of a scheme that was applied by the quantizer and computed by the model of the arithmetic.

    `cause`, `change` and `operators` identify the change: see `qnnsweep.tasks.repair.candidates.Candidate`.
    """

    cause: Cause
    change: str
    operators: tuple[str, ...]
    noise: tuple[float, ...]
    """Per evaluation sample, the noise-to-signal ratio of the worst final output at the rung `designed`; empty if the
    change was refused."""
    refused: str | None
    """Why the change cannot be applied, computed or compiled; None if it can."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cures:
    """The trials of one cell, in the order in which they were made."""

    trials: tuple[Trial, ...]
