"""Between a device's numbers and PyTorch's: integer codes to reals, reals onto the device's grid, layouts undone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.errors import EvidenceError
from tasks.records import Quantization


def dequantize(codes: NDArray[Any], quantization: Quantization) -> NDArray[np.float64]:
    """The reals that integer codes stand for, (code - zero_point) * scale, in float64 and of the same shape.

    Per channel, `codes` are in PyTorch's layout, to which `quantization.axis` refers. Raises EvidenceError if the
    quantization does not fit the tensor.
    """
    scale, zero_point = _grid(quantization, codes.shape)
    return (codes.astype(np.float64) - zero_point) * scale


def snap(real: NDArray[Any], quantization: Quantization) -> NDArray[np.float64]:
    """The reals that the device can hold nearest to `real`: on the grid, ties to the even code, clamped to its ends.

    The code is clamp(round(x / scale) + zero_point, quant_min, quant_max) as in `quantized_decomposed`'s
    `quantize_per_tensor`, here in float64 and by division, not by the inverse. NaN stays NaN.
    Raises EvidenceError like `dequantize`.
    """
    return dequantize(codes_of(real, quantization), quantization)


def codes_of(real: NDArray[Any], quantization: Quantization) -> NDArray[np.float64]:
    """The codes that stand for `snap(real, quantization)`, whole numbers in float64. Raises like `dequantize`."""
    scale, zero_point = _grid(quantization, real.shape)
    with np.errstate(over="ignore", under="ignore"):  # beyond the grid's ends either way, or at its middle
        steps = np.rint(real.astype(np.float64) / scale)
    return np.clip(steps + zero_point, quantization.quant_min, quantization.quant_max)


def undo_layout(x: NDArray[Any], axis_order: Sequence[int] | None) -> NDArray[Any]:
    """A view of a device's tensor in PyTorch's layout; None is PyTorch's own.

    `axis_order` took PyTorch's layout to the device's: x_device = x_torch.permute(axis_order). Raises EvidenceError if
    it is not a permutation of the tensor's axes.
    """
    if axis_order is None:
        return x
    if sorted(axis_order) != list(range(x.ndim)):
        raise EvidenceError(
            f"axis order {list(axis_order)} is no permutation of the axes of a tensor of shape {x.shape}"
        )
    return np.transpose(x, [axis_order.index(axis) for axis in range(x.ndim)])


def _grid(quantization: Quantization, shape: tuple[int, ...]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Scale and zero point, shaped to broadcast against a tensor of this shape in PyTorch's layout."""
    scale, zero_point = quantization.scale, quantization.zero_point
    axis = quantization.axis
    if axis is None:
        channels, broadcast = 1, ()
    elif -len(shape) <= axis < len(shape):
        channels = shape[axis]
        broadcast = tuple(channels if dimension == axis % len(shape) else 1 for dimension in range(len(shape)))
    else:
        raise EvidenceError(f"quantization along axis {axis} does not fit a tensor of shape {shape}")
    if not len(scale) == len(zero_point) == channels:
        raise EvidenceError(
            f"{len(scale)} scales and {len(zero_point)} zero points do not fit shape {shape} along axis {axis}"
        )
    if not all(math.isfinite(step) and step > 0 for step in scale):
        raise EvidenceError(f"a quantization's scales are positive numbers, not {scale}")
    return np.array(scale, np.float64).reshape(broadcast), np.array(zero_point, np.float64).reshape(broadcast)
