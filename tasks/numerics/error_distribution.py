"""The distribution of an error over the elements of a tensor: by size, by channel, and over the plane of an image."""

import numpy as np

from qnnsweep.tasks.numerics.element_use import Array
from qnnsweep.tasks.records import ErrorDistribution

HALF = 16
"""The number of bins of the histogram on each side of the middle bin."""
MOST_CHANNELS = 64
HEAT_SIDE = 16
"""The largest number of rows and of columns of the heat map."""
_LARGEST_FAST = 1e15
"""Squares of larger errors, such as those of the mask -3.4e38 of an attention, are computed as 64-bit floats."""


def error_distribution(error: Array, used: Array | None = None) -> ErrorDistribution:
    """Return the distribution of an error, which is in PyTorch's layout, over its used elements.

    `used`: which elements are used; None if all are. The errors of these elements are finite.
    """
    axis, plane = _axes(error.shape)
    errors = error if used is None else error[used]
    largest = float(np.abs(errors).max(initial=0))
    counted = error if used is None else np.where(used, error, np.float32(0))
    squares = np.square(counted, dtype=np.float32 if largest < _LARGEST_FAST else np.float64)
    heat = _root_mean_squares(squares, used, plane, HEAT_SIDE) if plane else None
    channels = squares.shape[axis] if axis is not None else None
    of_channels = _root_mean_squares(squares, used, (axis,), MOST_CHANNELS) if axis is not None else None
    return ErrorDistribution(
        largest_error=largest,
        histogram=_histogram(errors, largest),
        channel_axis=axis,
        channels=channels,
        channel_errors=tuple(of_channels.tolist()) if of_channels is not None else (),
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


def _root_mean_squares(squares: Array, used: Array | None, axes: tuple[int, ...], most: int) -> Array:
    """Return the root mean square along the other axes. Neighbours are joined to at most `most` groups per axis.

    It is 0 where no element is used. `squares` is 0 at unused elements.
    """
    others = tuple(axis for axis in range(squares.ndim) if axis not in axes)
    sums = squares.sum(axis=others, dtype=np.float64)
    counts = np.full(sums.shape, squares.size // sums.size) if used is None else used.sum(axis=others, dtype=np.int64)
    for axis in range(len(axes)):
        sums, counts = _joined(sums, most, axis), _joined(counts, most, axis)
    return np.sqrt(sums / np.maximum(counts, 1))


def _joined(sums: Array, most: int, axis: int) -> Array:
    """Return the sums of neighbours along an axis, so that at most `most` are left."""
    size = sums.shape[axis]
    if size <= most:
        return sums
    return np.add.reduceat(sums, [size * group // most for group in range(most)], axis=axis)
