"""What a backend must know of a call to say how the device computes it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from qnnsweep.tasks.records import Quantization


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelCall:
    """A call of a graph, for which the device has a kernel."""

    index: int
    target: str
    arguments: Sequence[Any]
    """As in a reference graph."""
    shape: Sequence[int]
    qparams: Quantization
    """The grid on which the call's value is read."""
    overrides: Collection[int]
    """The indices of the overrides that select the call."""
    source_target: str | None
    """The target of the call whose value the first argument is; None for an input of the model and for a constant."""
    source_dtype: str | None
    """The type of the first argument; None for a constant."""
    is_split: bool
    """Whether the call and that whose value it reads are in different subgraphs, as far as these are known."""
