"""By how much the elements of a value are changed to see whether they are used, and which results then differ."""

import math
from functools import cached_property, lru_cache

import numpy as np

from qnnsweep.tasks.numerics.blocks import Array, block_of, blocks
from qnnsweep.tasks.numerics.metrics import signed_error
from qnnsweep.tasks.records import Quantization

CHANGE = 1e-3
"""How much an element is changed, as a share of its size, if the device's value is right."""

_EPSILON = float(np.finfo(np.float32).eps)
_FLOOR = 1e-36  # the share of the reader's largest result below which float32 cannot hold weights of results
_LEAST = 1e-30  # the rounding of a smaller result is no normal number of float32
_SAME = 1e-6  # a difference up to this share of a result is rounding: the results agree


class ValuePair:
    """An operator's value on the device and the right value, in the type in which readers receive them."""

    def __init__(self, actual: Array, expected: Array, differs: Array) -> None:
        self.actual, self.expected, self.differs = actual, expected, differs
        self.masks: dict[int, list[Array | bool | None] | None] = {}  # of the readers' outputs

    @cached_property
    def usual(self) -> float:
        """The root mean square of the right value, or 1 if the value is all zeros."""
        return _rms(self.expected) or 1.0

    @cached_property
    def least_change(self) -> float:
        """The least of all changes. It is NaN if an element is not finite, because its change can be NaN."""
        with np.errstate(invalid="ignore", over="ignore"):
            finite = math.isfinite(self.expected.sum()) and (
                self.actual is self.expected or math.isfinite(self.actual.sum())
            )
            least = np.multiply(np.asarray(self.usual, self.expected.dtype), CHANGE)
        return min(float(least), float(np.finfo(np.float32).max)) if finite else math.nan

    @cached_property
    def change(self) -> Array:
        """By how much each element is changed: by its error, or by a small share of its size if that is larger.

        The change is finite, so that it has no effect on a result whose derivative is zero. Only NaN stays NaN.
        """
        least = np.asarray(self.usual, self.expected.dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            change = np.abs(self.expected, out=np.empty_like(self.expected))
            np.multiply(np.maximum(change, least, out=change), CHANGE, out=change)
            if self.differs.any():
                np.maximum(np.abs(signed_error(self.actual, self.expected)), change, out=change)
            return np.minimum(change, np.finfo(np.float32).max, out=change)


def _unequal(shape: tuple[int, ...], seed: int) -> Array:
    """Return different weights. In a plain sum, derivatives can cancel, as if the element were unused."""
    size = math.prod(shape)
    return _random(1 << size.bit_length(), seed)[:size].reshape(shape)


@lru_cache(maxsize=64)
def _random(size: int, seed: int) -> Array:
    """Return random weights. Of two sizes, the larger one begins with those of the smaller one."""
    return np.random.default_rng(seed).random(size, np.float32) + np.float32(0.5)


def output_weights(mask: Array | bool, scale: Array, shape: tuple[int, ...], seed: int) -> Array:
    """Return different weights for the used elements of an output (`mask`), multiplied by `scale`."""
    weights = _unequal(shape, seed)
    if mask is not True or scale.size > 1 or scale.item() != 1:
        weights = weights * scale.astype(np.float32) * mask
    return weights


def _rms(values: Array) -> float:
    """Return the root mean square of the finite values."""
    read = (block_of(values, part) for part in blocks(values.size))
    energy = sum(float(np.einsum("i,i->", block, block)) for block in read)
    if not math.isfinite(energy):
        return _rms(values[np.isfinite(values)]) if not np.isfinite(values).all() else math.inf
    return math.sqrt(energy / max(values.size, 1))


def largest_rounding(results: Array) -> Array:
    """Return the rounding of float32 in the largest finite result, as an array of one element."""
    largest = max(float(results.max(initial=0.0)), -float(results.min(initial=0.0)))
    if not math.isfinite(largest):
        largest = float(np.abs(results[np.isfinite(results)]).max(initial=0.0))
    return np.full(1, _EPSILON * (largest or 1.0))


def roundings(results: Array) -> Array:
    """Return the rounding of float32 in every result."""
    sizes = np.abs(results.astype(np.float32, copy=False))
    if not np.isfinite(sizes).all():
        sizes = np.where(np.isfinite(sizes), sizes, np.float32(0))
    largest = float(sizes.max(initial=0.0))
    return np.float32(_EPSILON) * np.maximum(sizes, np.float32(max(_FLOOR * largest, _LEAST) if largest else 1.0))


def differ(result: Array, right: Array, qparams: Quantization | None) -> Array:
    """Return which elements differ by more than rounding explains. On a grid, rounding explains up to half a step."""
    if right.dtype.kind != "f":
        return result != right
    sizes = np.abs(right)
    largest = float(sizes[np.isfinite(sizes)].max(initial=0.0))
    least = _SAME * np.maximum(sizes, _FLOOR * largest) if qparams is None else min(qparams.scale) / 2
    with np.errstate(invalid="ignore"):
        return ~((np.abs(result - right) <= least) | (result == right) | (np.isnan(result) & np.isnan(right)))
