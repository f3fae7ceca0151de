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
    """Per method and sample of the search, the noise-to-signal ratio of the worst final output at the rung `designed`;
    empty if the change was refused."""
    refused: str | None
    """Why the change cannot be applied, computed or compiled; None if it can."""

    @property
    def key(self) -> tuple[str, str, tuple[str, ...]]:
        """The key of the candidate that was tried."""
        return self.cause, self.change, tuple(sorted(self.operators))


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightChoices:
    """The numbers of bits that an override can give the weight that an operator reads."""

    operator: str
    elements: int
    now: int
    """The number of bits of an element now, which is one of the choices."""
    element_bits: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightBits:
    """The number of bits of an element of the weight that an operator reads."""

    operator: str
    element_bits: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """The best numbers of bits of the weights under a limit. `change`: which weights could change, in words."""

    change: str
    bits: tuple[WeightBits, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cures:
    """The trials of one cell, in the order in which they were made."""

    trials: tuple[Trial, ...]
    allocations: tuple[Allocation, ...] = ()
    """The best bits of the weights within the target's limits of the size; empty without such a limit."""
    before: tuple[float, ...] = ()
    """The noise as in `Trial.noise`, without a change. Only of a model with states, whose steps a trial runs one after
    the other; the outputs of the rung `designed` are those of single steps."""
