"""The error that a device's grid causes: the rounding of a value to the steps of the grid, and clipping at its ends."""

from dataclasses import dataclass

import numpy as np

from qnnsweep.tasks.numerics.arithmetic import LARGEST_HALF, as_half
from qnnsweep.tasks.numerics.blocks import Array, Tensor, whole
from qnnsweep.tasks.numerics.dequantize import step_sizes
from qnnsweep.tasks.numerics.element_use import CapturedValue
from qnnsweep.tasks.numerics.metrics import select, signed_error, sums_of_finite
from qnnsweep.tasks.records import Gap, Quantization
from qnnsweep.tasks.records.vocabulary import Cause

_COUNTED = 2**17  # a grid with more steps is not counted step by step
_HALF_STEP = 0.5 + 1e-6  # rounding inside the grid moves a value by at most half a step


@dataclass(frozen=True, kw_only=True, slots=True)
class GridUse:
    """How well a grid represents a value."""

    gap: Gap
    """The error of the nearest values on the grid."""
    clipped_elements: int
    """The number of elements beyond the ends of the grid."""
    codes_used: int
    """The number of different quantized values on the device."""
    range_used: float
    """The range of the value divided by the range of the grid. It is above 1 if the value does not fit the grid."""
    least: float
    largest: float
    needed: tuple[float, float]
    """The least and the largest value that the grid should hold: of the value itself and of the reference."""


def float16_around(exact: Array, actual: Array) -> Array:
    """Return, per element, that of the two float16 values around `exact` that is nearer to `actual`, as float32.

    A value that float16 can represent is returned as it is.
    """
    with np.errstate(over="ignore"):
        nearest = exact.astype(np.float16)
        towards = np.where(nearest > exact, -np.inf, np.inf).astype(np.float16)
        other = np.where(nearest == exact, nearest, np.nextafter(nearest, towards))
    first, second = nearest.astype(np.float32), other.astype(np.float32)
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(actual - second) < np.abs(actual - first), second, first)


def grid_use(
    captured: CapturedValue,
    on_host: Array,
    rounded: Tensor,
    used: Array | None,
    reference: Array | None = None,
    used_reference: Array | None = None,
) -> GridUse | None:
    """Return how the grid of a value is used; None for a value without a grid or without used finite elements.

    `on_host`: the unrounded value. `rounded`: the nearest values on the grid. `used`: a mask; None if all are used.
    `reference`, `used_reference`: the value in the reference's own run, which can reach further if an earlier value is
    clipped, and a mask.
    """
    if captured.qparams is None:
        return None
    sums, counted = sums_of_finite(rounded, on_host, used)
    if not sums.elements:
        return None
    clipped = 0
    if sums.error_largest > _HALF_STEP * min(captured.qparams.scale):
        clipped = int(np.count_nonzero(select(_clipped(on_host, whole(rounded), captured.qparams), counted)))
    steps, values = captured.qparams.quant_max - captured.qparams.quant_min, _others_repeated(on_host, counted)
    least, largest = float(values.min()), float(values.max())
    further = values if reference is None else _finite(select(reference, used_reference))
    return GridUse(
        gap=sums.gap,
        clipped_elements=clipped,
        codes_used=_codes(_others_repeated(captured.elements, counted), captured.qparams),
        range_used=(largest - least) / (steps * max(captured.qparams.scale)),
        least=least,
        largest=largest,
        needed=(float(further.min(initial=least)), float(further.max(initial=largest))),
    )


def grid_errors(on_host: Array, rounded: Tensor, qparams: Quantization) -> dict[Cause, Array]:
    """Divide the rounding error of a value into clipping and resolution. Both are float32, with the value's shape."""
    rounded = whole(rounded)
    error = signed_error(rounded, on_host)
    clipped = _clipped(on_host, rounded, qparams)
    if not clipped.any():
        return {"resolution": error}
    return {"resolution": np.where(clipped, np.float32(0), error), "clipping": np.where(clipped, error, np.float32(0))}


def half_errors(on_host: Array) -> dict[Cause, Array]:
    """Divide the rounding error of a value to float16 into overflow and resolution. Both are float32."""
    if on_host.dtype != np.float32:
        return {}
    wide = as_half(on_host, overflows=False)
    errors: dict[Cause, Array] = {"resolution": signed_error(wide, on_host)}
    if (beyond := np.isfinite(on_host) & (np.abs(wide) > LARGEST_HALF)).any():
        errors["overflow"] = np.where(beyond, np.copysign(np.float32(np.inf), on_host), np.float32(0))
    return errors


def _others_repeated(tensor: Array, counted: Array | None) -> Array:
    """Return the tensor with one of the elements that count in place of every other element.

    The different values are those of `select(tensor, counted)`, which takes longer.
    """
    if counted is None:
        return tensor
    return np.where(counted, tensor, tensor.reshape(-1)[np.argmax(counted)])


def _finite(values: Array) -> Array:
    finite = np.isfinite(values)
    return values if finite.all() else values[finite]


def _codes(elements: Array, qparams: Quantization) -> int:
    """Return the number of different quantized values."""
    if qparams.quant_max - qparams.quant_min >= _COUNTED:
        return np.unique(elements).size
    # For few steps, this is ten times faster than to sort the elements.
    counted = np.zeros(qparams.quant_max - qparams.quant_min + 1, np.bool_)
    inside = elements.dtype.kind in "iu" and qparams.quant_min <= elements.min() <= elements.max() <= qparams.quant_max
    if not inside:
        elements = np.clip(elements.astype(np.int64), qparams.quant_min, qparams.quant_max)
    counted[np.subtract(elements, qparams.quant_min, dtype=np.intp)] = True
    return int(np.count_nonzero(counted))


def _clipped(on_host: Array, rounded: Array, qparams: Quantization) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.abs(rounded - on_host) > _HALF_STEP * step_sizes(qparams, on_host.shape)
