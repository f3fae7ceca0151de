"""Tensors that are read in float64, block by block, so that all steps of a computation fit the processor's cache.

A pass over a whole tensor is several times slower than the same pass over blocks: each result is new memory.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_BLOCK = 2**15

ONE_THREAD = 2**13
"""BLAS uses one thread for so few elements, and therefore adds them up in the same order on any number of cores."""


class Blockwise(Protocol):
    """A tensor that is computed when it is read, for example from quantized values."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def size(self) -> int: ...

    def block(self, part: slice) -> Array:
        """Return these elements of the flattened tensor, in float64."""
        ...

    def dequantized(self) -> Array:
        """Return the whole tensor."""
        ...


Tensor = Array | Blockwise


def blocks(size: int) -> Iterator[slice]:
    """Yield the slices that divide a flattened tensor of `size` elements into blocks."""
    for start in range(0, size, _BLOCK):
        yield slice(start, start + _BLOCK)


def block_of(tensor: Tensor, part: slice) -> Array:
    """Return these elements of the flattened tensor, in float64."""
    if isinstance(tensor, np.ndarray | np.generic):
        return tensor.reshape(-1)[part].astype(np.float64, copy=False)
    return tensor.block(part)


def whole(tensor: Tensor) -> Array:
    """Return the whole tensor as one array."""
    return tensor if isinstance(tensor, np.ndarray | np.generic) else tensor.dequantized()
