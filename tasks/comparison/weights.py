"""The rounding errors of a quantized model's weights: the weights in the program against the float weights."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from qnnsweep.tasks.numerics.element_use import Array, Kernels
from qnnsweep.tasks.records import LoweredMethod
from qnnsweep.tasks.storage.store import Store

Errors = NDArray[np.float32]
_ROUNDING = 1e-3  # how much larger the error's energy may be than the weight's, because of float32's own rounding


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightErrors:
    """The rounding errors of the weights and biases that the edge graph dequantizes."""

    by_operator: Mapping[int, Errors]
    """Per index of the operator that dequantizes a weight: the dequantized weight minus the float weight."""
    unknown: tuple[str, ...]
    """The names of the operators that dequantize a constant whose float tensor is not known."""


def weight_errors(lowered: LoweredMethod, store: Store, kernels: Kernels) -> WeightErrors:
    """Return the rounding error of every quantized weight and bias. A float scheme has none.

    `kernels`: the edge graph's kernels, on any inputs. The float tensor of an operator is unknown if pt2e did not store
    it, or if it is not the tensor that the operator's constant was rounded from: a pass may change a weight's layout.
    """
    blob = lowered.quantized.float_weights
    floats: Mapping[str, Array] = {} if blob is None else load(store.read(blob))
    errors: dict[int, Errors] = {}
    unknown: list[str] = []
    for operator in lowered.operators:
        if not (operator.constant and ".dequantize_" in operator.target):
            continue
        rounded = kernels.call(operator.index, {})
        originals = [floats[name] for name in operator.source_nodes if name in floats]
        if not isinstance(rounded, np.ndarray) or len(originals) != 1:
            unknown.append(operator.name)
        elif _is_rounded(rounded, original := _of_kernel(originals[0], rounded)):
            errors[operator.index] = rounded - original
        else:
            unknown.append(operator.name)
    return WeightErrors(by_operator=errors, unknown=tuple(unknown))


def _of_kernel(original: Array, rounded: Array) -> Array:
    """Return the weight of a linear layer as the kernel of 1×1 that it is if the layer is compiled as a convolution."""
    return original.reshape(rounded.shape) if rounded.shape == (*original.shape, 1, 1) else original


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
    error = float(np.square(rounded - original, dtype=np.float64).sum())
    return error <= float(np.square(original, dtype=np.float64).sum()) * (1 + _ROUNDING)
