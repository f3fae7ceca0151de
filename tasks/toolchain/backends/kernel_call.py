"""What a backend must know of a call to say how the device computes it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from qnnsweep.tasks.records import Quantization

CASTS = frozenset({"aten._to_copy.default", "dim_order_ops._to_dim_order_copy.default"})
"""The targets of the calls that convert a value to another type."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelCall:
    """A call of a graph that the device computes, as far as this is known."""

    index: int
    target: str
    arguments: Sequence[Any]
    """As in a reference graph."""
    shape: Sequence[int]
    dtype: str
    qparams: Quantization
    """The grid on which the call's value is read."""
    overrides: Collection[int]
    """The indices of the overrides that select the call."""
    source_dtype: str | None
    """The type of the first argument; None if it is no input and no value of a call."""
    cast_dtype: str | None
    """The type at the beginning of the chain of casts before the call, if one delegate has them all; else that of the
    first argument."""
