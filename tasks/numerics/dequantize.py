"""Conversion between tensors of a device and of PyTorch: quantized and dequantized values, and axis orders."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.numerics.blocks import blocks
from qnnsweep.tasks.records import Quantization


def dequantize(
    quantized: NDArray[Any], qparams: Quantization, dtype: np.dtype[Any] | type[np.floating] = np.float64
) -> NDArray[Any]:
    """Return (quantized - zero_point) * scale, computed in float64, of type `dtype` and of the same shape.

    `quantized` is in PyTorch's layout, to which `qparams.axis` refers. Raises EvidenceError if the qparams do not fit
    the tensor.
    """
    scale, zero_point = broadcastable(qparams, quantized.shape)
    values = np.empty(quantized.shape, dtype)
    for part, target in _parts(quantized, values, qparams):
        np.multiply(np.subtract(part, zero_point, dtype=np.float64), scale, out=target, casting="same_kind")
    return values


def fake_quantize(values: NDArray[Any], qparams: Quantization) -> NDArray[np.float64]:
    """Return, for each value, the nearest value that the device can represent, in float64 and of the same shape.

    This is `dequantize(quantize(values, qparams), qparams)`. Raises EvidenceError like `dequantize`.
    """
    return on_grid(values, qparams, dtype=np.float64)


def on_grid(
    values: NDArray[Any],
    qparams: Quantization,
    *,
    clips: bool = True,
    rounds: bool = True,
    more_steps: NDArray[Any] | None = None,
    dtype: np.dtype[Any] | type[np.floating] | None = None,
) -> NDArray[Any]:
    """Return the values on a grid: clipped to its ends and rounded to its steps, if asked, and computed in float64.

    `more_steps`: added after the rounding. `dtype`: of the result; None for that of `values`. NaN stays NaN. Raises
    EvidenceError like `dequantize`.
    """
    scale, zero_point = broadcastable(qparams, values.shape)
    result = np.empty(values.shape, values.dtype if dtype is None else dtype)
    if scale.ndim:
        _put_on_grid(values, result, qparams, (scale, zero_point), more_steps, clips=clips, rounds=rounds)
        return result
    flat, target = np.ascontiguousarray(values).reshape(-1), result.reshape(-1)
    more = None if more_steps is None else np.ascontiguousarray(more_steps).reshape(-1)
    for part in blocks(values.size):
        steps = None if more is None else more[part]
        _put_on_grid(flat[part], target[part], qparams, (scale, zero_point), steps, clips=clips, rounds=rounds)
    return result


def _put_on_grid(
    values: NDArray[Any],
    target: NDArray[Any],
    qparams: Quantization,
    grid: tuple[NDArray[Any], NDArray[Any]],
    more_steps: NDArray[Any] | None,
    *,
    clips: bool,
    rounds: bool,
) -> None:
    scale, zero_point = grid
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        steps = np.divide(values, scale, dtype=np.float64)
        if rounds:
            np.add(np.rint(steps, out=steps), 0.0, out=steps)  # the code of zero has no sign
        if clips:
            np.clip(steps, qparams.quant_min - zero_point, qparams.quant_max - zero_point, out=steps)
        if more_steps is not None:
            steps += more_steps
        np.multiply(steps, scale, out=target, casting="same_kind")


def quantize(values: NDArray[Any], qparams: Quantization, *, smallest_type: bool = False) -> NDArray[Any]:
    """Return clamp(round(values / scale) + zero_point, quant_min, quant_max): integers in float64, of the same shape.

    `smallest_type`: whether the result has the smallest integer type that holds the grid, unless a value is NaN. Ties
    round to even. This is the formula of `quantized_decomposed.quantize_per_tensor`, in float64 and by division
    instead of multiplication by the inverse. Raises EvidenceError like `dequantize`.
    """
    scale, zero_point = broadcastable(qparams, values.shape)
    ends = qparams.quant_min, qparams.quant_max
    is_small = smallest_type and not np.isnan(values.min(initial=0))
    quantized = np.empty(values.shape, _smallest_type(*ends) if is_small else np.float64)
    with np.errstate(over="ignore", under="ignore"):  # values far beyond the grid overflow, values near zero underflow
        for part, target in _parts(values, quantized, qparams):
            steps = np.divide(part, scale, dtype=np.float64)
            np.add(np.rint(steps, out=steps), zero_point, out=steps)
            np.clip(steps, *ends, out=target, casting="unsafe")
    return quantized


def _smallest_type(lowest: int, highest: int) -> type[np.number]:
    """Return the smallest type that holds the integers from `lowest` to `highest`."""
    for dtype in (np.uint8, np.int8, np.uint16, np.int16, np.int32):
        if np.iinfo(dtype).min <= lowest and highest <= np.iinfo(dtype).max:
            return dtype
    return np.float64


def _parts(
    source: NDArray[Any], target: NDArray[Any], qparams: Quantization
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Divide two tensors of the same shape into blocks, or leave them whole if the qparams differ per channel."""
    if qparams.axis is not None:
        yield source, target
        return
    flat_source, flat_target = source.reshape(-1), target.reshape(-1)
    for part in blocks(source.size):
        yield flat_source[part], flat_target[part]


def dequantize_block(quantized: NDArray[Any], qparams: Quantization, part: slice) -> NDArray[np.float64]:
    """Return elements of the flattened result of `dequantize`. Raises EvidenceError like `dequantize`."""
    scale, zero_point = broadcastable(qparams, quantized.shape)
    if qparams.axis is not None:
        scale, zero_point = (np.broadcast_to(tensor, quantized.shape).flat[part] for tensor in (scale, zero_point))
    values = quantized.reshape(-1)[part].astype(np.float64)
    np.subtract(values, zero_point, out=values)
    return np.multiply(values, scale, out=values)


def step_sizes(qparams: Quantization, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the scale, broadcastable against a tensor of shape `shape`. Raises EvidenceError like `dequantize`."""
    return broadcastable(qparams, shape)[0]


def undo_layout(x: NDArray[Any], axis_order: Sequence[int] | None) -> NDArray[Any]:
    """Return a view of a device's tensor in PyTorch's layout.

    `axis_order`: the permutation from PyTorch's layout to the device's, x_device = x_torch.permute(axis_order); None if
    both layouts are the same. Raises EvidenceError if `axis_order` is no permutation of the tensor's axes.
    """
    if axis_order is None:
        return x
    if sorted(axis_order) != list(range(x.ndim)):
        raise EvidenceError(
            f"axis order {list(axis_order)} is no permutation of the axes of a tensor of shape {x.shape}"
        )
    return np.transpose(x, [axis_order.index(axis) for axis in range(x.ndim)])


@lru_cache(maxsize=256)
def broadcastable(qparams: Quantization, shape: tuple[int, ...]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return scale and zero point, broadcastable against a tensor of shape `shape` in PyTorch's layout.

    Raises EvidenceError if the qparams do not fit the tensor.
    """
    scale, zero_point = qparams.scale, qparams.zero_point
    axis = qparams.axis
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
        raise EvidenceError(f"the scales of a quantization must be positive numbers, not {scale}")
    arrays = tuple(np.array(values, np.float64).reshape(broadcast) for values in (scale, zero_point))
    for array in arrays:
        array.flags.writeable = False  # several callers have the same arrays
    return arrays[0], arrays[1]
