"""The distribution of an error over the elements of a tensor: by size, by channel, and over the plane of an image."""

from dataclasses import dataclass

import numpy as np

from tasks.numerics.element_use import Array

HALF = 16
"""The number of bins of the histogram on each side of the middle bin."""
MOST_CHANNELS = 64
HEAT_SIDE = 16
_LARGEST_FAST = 1e15
"""Squares of larger errors, such as those of the mask -3.4e38 of an attention, are computed as 64-bit floats."""
"""The largest number of rows and of columns of the heat map."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorDistribution:
    """The distribution of an error. `tasks.records.ErrorDetail` describes the fields."""

    largest_error: float
    histogram: tuple[int, ...]
    channel_axis: int | None
    channels: int | None
    channel_errors: tuple[float, ...]
    heat_rows: int | None
    heat_columns: int | None
    heat: tuple[float, ...]


def error_distribution(error: Array) -> ErrorDistribution:
    """Return the distribution of a finite error, which is in PyTorch's layout."""
    axis, plane = _axes(error.shape)
    largest = float(np.abs(error).max(initial=0))
    squares = np.square(error, dtype=np.float32 if largest < _LARGEST_FAST else np.float64)
    heat = _heat(squares, plane) if plane else None
    channels = squares.shape[axis] if axis is not None else None
    return ErrorDistribution(
        largest_error=largest,
        histogram=_histogram(error, largest),
        channel_axis=axis,
        channels=channels,
        channel_errors=_channel_errors(squares, axis) if axis is not None else (),
        heat_rows=heat.shape[0] if heat is not None else None,
        heat_columns=heat.shape[1] if heat is not None else None,
        heat=tuple(heat.ravel().tolist()) if heat is not None else (),
    )


def _axes(shape: tuple[int, ...]) -> tuple[int | None, tuple[int, int] | None]:
    """Return the axis of the channels and the two spatial axes, which are None if there are none.

    An operator after a change of layout has the channels last. In a tensor of four axes, this is assumed if the second
    and the third are equal and the last is not.
    """
    if len(shape) != 4:
        return (len(shape) - 1 if len(shape) in (1, 2, 3) else 1 if shape else None), None
    channels_last = shape[1] == shape[2] > 1 and shape[3] != shape[2]
    axis, plane = (3, (1, 2)) if channels_last else (1, (2, 3))
    return axis, plane if min(shape[plane[0]], shape[plane[1]]) > 1 else None


def _histogram(error: Array, largest: float) -> tuple[int, ...]:
    bins = 2 * HALF + 1
    if largest == 0:
        return (0,) * HALF + (error.size,) + (0,) * HALF
    # Faster than np.histogram, because the bins have the same width.
    numbers = np.rint(np.multiply(error, HALF / largest, dtype=np.float64)).astype(np.int8).reshape(-1)
    return tuple(np.bincount(numbers + HALF, minlength=bins).tolist())


def _channel_errors(squares: Array, axis: int) -> tuple[float, ...]:
    mean_squares = squares.mean(axis=tuple(other for other in range(squares.ndim) if other != axis), dtype=np.float64)
    mean_squares = np.atleast_1d(mean_squares)
    return tuple(np.sqrt(_joined(mean_squares, MOST_CHANNELS, 0)).tolist())


def _heat(squares: Array, plane: tuple[int, int]) -> Array:
    mean_squares = squares.mean(axis=tuple(axis for axis in range(squares.ndim) if axis not in plane), dtype=np.float64)
    return np.sqrt(_joined(_joined(mean_squares, HEAT_SIDE, 0), HEAT_SIDE, 1))


def _joined(mean_squares: Array, most: int, axis: int) -> Array:
    """Return the means of neighbours along an axis, so that at most `most` are left."""
    size = mean_squares.shape[axis]
    if size <= most:
        return mean_squares
    starts = np.array([size * group // most for group in range(most + 1)], np.intp)
    widths = np.diff(starts).reshape(-1, *(1,) * (mean_squares.ndim - axis - 1))
    return np.add.reduceat(mean_squares, starts[:-1], axis=axis) / widths
