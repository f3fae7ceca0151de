"""The float weights of a quantized graph: which stored tensor a dequantized constant was rounded from."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qnnsweep.tasks.numerics.element_use import Array, Value
from qnnsweep.tasks.records import Operator

Floats = NDArray[np.float32]
_ELEMENTS_AT_ONCE = 2**20  # in float64
_ROUNDING = 1e-3  # how much larger the error's energy may be than the weight's, because of float32's own rounding


def dequantizes_constant(operator: Operator) -> bool:
    """Return whether an operator dequantizes a weight or a bias."""
    return operator.constant and ".dequantize_" in operator.target


def float_weight(operator: Operator, rounded: Value | None, floats: Mapping[str, Array]) -> Floats | None:
    """Return the float tensor of the constant that an operator dequantizes, in the shape of `rounded`.

    `rounded`: the value of the operator. `floats`: the float tensors, by the names of their observers. Returns None if
    pt2e did not store the tensor, or if it is not the tensor that the constant was rounded from: a pass may change a
    weight's layout.
    """
    originals = [floats[name] for name in operator.source_nodes if name in floats]
    if rounded is None or isinstance(rounded, tuple) or len(originals) != 1:
        return None
    original = _of_kernel(originals[0], rounded)
    return original if _is_rounded(rounded, original) else None


def _of_kernel(original: Array, rounded: Array) -> Array:
    """Return the weight with the dimensions of 1 that a pass adds.

    A linear layer or a 1D convolution may be compiled as a 2D convolution.
    """
    of_both = [[size for size in array.shape if size != 1] for array in (original, rounded)]
    return original.reshape(rounded.shape) if of_both[0] == of_both[1] else original


def _is_rounded(rounded: Array, original: Array) -> bool:
    """Return whether `rounded` can be `original` after rounding, with its axes in the same order.

    Zero is on every grid, so rounding and clipping never change a weight by more than its own magnitude. The error of a
    transposed weight has about twice the weight's energy. A bias has one axis, which cannot be transposed. The int32
    grid of a bias may be too small: then the bias can overflow to the other sign, which is an error to report.
    """
    if rounded.shape != original.shape:
        return False
    if original.ndim < 2:
        return True
    parts = max(1, original.size // _ELEMENTS_AT_ONCE)
    pairs = [*zip(np.array_split(rounded, parts), np.array_split(original, parts), strict=True)]
    error = sum(float(np.square(of_rounded - part, dtype=np.float64).sum()) for of_rounded, part in pairs)
    return error <= sum(float(np.square(part, dtype=np.float64).sum()) for _, part in pairs) * (1 + _ROUNDING)
