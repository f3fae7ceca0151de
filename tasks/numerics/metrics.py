"""The metrics of the difference of two tensors, computed from one set of sums.

Every metric computes in float64, whatever the tensors' dtype; integers beyond 2**53 are rounded. Both tensors have the
same shape and finite elements. None means "not defined": the tensors have no elements, or a metric's docstring names
the reason. No metric returns an infinity: a value that float64 cannot hold is None too.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np

from qnnsweep.tasks.numerics.blocks import ONE_THREAD, Array, Tensor, block_of, blocks, whole
from qnnsweep.tasks.numerics.dequantize import step_sizes
from qnnsweep.tasks.records import Gap, Quantization

# Squares of numbers within 2**±256, and their sums, are far from float64's limits. Other numbers are scaled first.
_SAFE_EXPONENT = 256
_SAFE_ENERGY = 2.0**512


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Two tensors, and the sums over the elements that count, from which the metrics are computed.

    Before they are summed, elements are multiplied by 2**-exponent. The actual tensor, the reference and the error have
    separate exponents. The largest absolute error is not scaled. `counted`: a mask of the elements that count; None if
    all elements count.
    """

    actual: Tensor
    reference: Tensor
    qparams: Quantization | None
    counted: Array | None
    elements: int
    error_absolute: float
    error_energy: float
    error_exponent: int
    error_largest: float
    reference_energy: float
    reference_exponent: int
    reference_sum: float
    actual_energy: float
    actual_exponent: int
    actual_sum: float
    product: float

    def largest(self, tensor: Tensor) -> float:
        """Return the largest absolute value of the elements of `tensor` that count, not scaled."""
        elements = select(whole(tensor), self.counted)
        return max(float(elements.max(initial=0)), -float(elements.min(initial=0)))

    @property
    def gap(self) -> Gap:
        """Return the metrics that are in every row: those of `METRICS` that are fields of `Gap`."""
        return Gap(**{name: METRICS[name](self) for name in _IN_EVERY_ROW})


def select(tensor: Array, counted: Array | None) -> Array:
    """Return the elements of `tensor` that count, flattened. `counted`: a mask; None if all elements count.

    For a mask without long runs, this is three times faster than `tensor[counted]`.
    """
    flat = tensor.reshape(-1)
    return flat if counted is None else flat.compress(counted.reshape(-1))


def signed_error(actual: Array, expected: Array, dtype: type[np.floating] = np.float32) -> Array:
    """Return actual - expected, element by element. It is 0 where both are the same infinity or NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        error: Array = actual.astype(dtype, copy=False) - expected.astype(dtype, copy=False)
        if np.isfinite(error).all():
            return error
        return np.where((actual == expected) | (np.isnan(actual) & np.isnan(expected)), dtype(0), error)


def gap(actual: Array, reference: Array) -> Gap:
    """Return the metrics that are in every row. Each tensor is read once.

    Raises ValueError for tensors of different shapes.
    """
    return sums_of(actual, reference).gap


def metric_values(
    names: Iterable[str], actual: Array, reference: Array, qparams: Quantization | None = None
) -> dict[str, float | None]:
    """Return the metrics with these names. `qparams`: the device's qparams, for metrics that count an error in steps.

    Raises KeyError for a name that is not in `METRICS`, and ValueError for tensors of different shapes.
    """
    sums = sums_of(actual, reference, qparams)
    return {name: METRICS[name](sums) for name in names}


def snr_db(actual: Array, reference: Array) -> float | None:
    """Return only the metric `snr_db`, in dB."""
    return _snr_db(sums_of(actual, reference))


def top1(values: Array) -> int | None:
    """Return the index of the largest element of the flattened tensor; of equal elements, the index of the first.

    None for a scalar, for a tensor of fewer than two elements, and for a tensor that contains NaN.
    """
    if values.ndim == 0 or values.size < 2 or (values.dtype.kind == "f" and bool(np.isnan(values).any())):
        return None
    return int(np.argmax(values))


def sums_of(
    actual: Tensor, reference: Tensor, qparams: Quantization | None = None, counted: Array | None = None
) -> Sums:
    """Return the sums of all metrics. `counted`: a mask of the elements that count; None if all elements count.

    The metrics in steps or units in the last place need a `counted` of None. Raises ValueError for tensors of different
    shapes.
    """
    if actual.shape != reference.shape:
        raise ValueError(f"tensors of shapes {actual.shape} and {reference.shape} have no gap")
    sums = _add_up(actual, reference, qparams, counted, (0, 0, 0), zeros=True)
    if counted is not None and not math.isfinite(sums.error_energy):
        sums = _add_up(actual, reference, qparams, counted, (0, 0, 0))
    exponents = (
        0 if _is_safe(sums.actual_energy) else _exponent(sums.largest(actual)),
        0 if _is_safe(sums.reference_energy) else _exponent(sums.largest(reference)),
        0 if _is_safe(sums.error_energy) else _exponent(sums.error_largest),
    )
    return _add_up(actual, reference, qparams, counted, exponents) if any(exponents) else sums


def _is_safe(energy: float) -> bool:
    return 1 / _SAFE_ENERGY < energy < _SAFE_ENERGY


def _add_up(
    actual: Tensor,
    reference: Tensor,
    qparams: Quantization | None,
    counted: Array | None,
    exponents: tuple[int, int, int],
    *,
    zeros: bool = False,
) -> Sums:
    """Compute the sums. `exponents`: those of actual, reference and error.

    `zeros`: whether elements that do not count are replaced by zeros instead of being left out. This is faster, but
    their infinities and NaNs become NaN.
    """
    actual_exponent, reference_exponent, error_exponent = exponents
    largest, energies, totals = 0.0, np.zeros(4), np.zeros(3)
    mask = None if counted is None else counted.reshape(-1)
    # The difference of two numbers near float64's limits overflows; `_finite` turns the infinity into None.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for part in blocks(actual.size):
            a, r = block_of(actual, part), block_of(reference, part)
            if mask is not None and zeros:
                weights = mask[part].astype(np.float64)
                a, r = (np.multiply(x, weights, out=x if x.flags.owndata else None) for x in (a, r))
            elif mask is not None:
                a, r = select(a, mask[part]), select(r, mask[part])
            error = np.subtract(a, r)
            np.abs(error, out=error)
            largest = float(np.maximum(largest, error.max(initial=0.0)))  # NaN stays NaN
            if any(exponents):
                a, r = np.ldexp(a, -actual_exponent), np.ldexp(r, -reference_exponent)
                error = np.ldexp(error, -error_exponent)
            energies += (_dot(error, error), _dot(r, r), _dot(a, a), _dot(a, r))
            totals += (error.sum(), r.sum(), a.sum())
    return Sums(
        actual=actual,
        reference=reference,
        qparams=qparams,
        counted=counted,
        elements=actual.size if counted is None else int(np.count_nonzero(counted)),
        error_absolute=float(totals[0]),
        error_energy=float(energies[0]),
        error_exponent=error_exponent,
        error_largest=largest,
        reference_energy=float(energies[1]),
        reference_exponent=reference_exponent,
        reference_sum=float(totals[1]),
        actual_energy=float(energies[2]),
        actual_exponent=actual_exponent,
        actual_sum=float(totals[2]),
        product=float(energies[3]),
    )


def sums_of_finite(actual: Tensor, reference: Tensor, used: Array | None) -> tuple[Sums, Array | None]:
    """Return the sums over the used elements that are finite on both sides, and a mask of these elements.

    `used`: a mask; None if all elements are used. The mask that is returned is None if all elements count.
    """
    sums = sums_of(actual, reference, counted=used)
    if math.isfinite(sums.error_energy):  # an infinity or a NaN on either side would make it infinite or NaN
        return sums, used
    counted = np.isfinite(whole(actual)) & np.isfinite(whole(reference))
    if used is not None:
        counted &= used
    return sums_of(actual, reference, counted=counted), counted


def _dot(left: Array, right: Array) -> float:
    rows, rest = divmod(left.size, ONE_THREAD)
    end = left.size - rest
    products = np.vecdot(left[:end].reshape(rows, ONE_THREAD), right[:end].reshape(rows, ONE_THREAD))
    return float(np.add.reduce(products) + np.dot(left[end:], right[end:]))


def _exponent(largest: float) -> int:
    """Return the exponent of the next power of two above `largest`, or 0 if no scaling is needed."""
    exponent = math.frexp(largest)[1] if largest and math.isfinite(largest) else 0
    return exponent if abs(exponent) > _SAFE_EXPONENT else 0


def _mse(sums: Sums) -> float | None:
    """Return the mean of squared differences, in the square of the tensors' unit."""
    return _finite(sums.error_energy / sums.elements, 2 * sums.error_exponent) if sums.elements else None


def _mean_abs(sums: Sums) -> float | None:
    """Return the mean of absolute differences, in the tensors' unit."""
    return _finite(sums.error_absolute / sums.elements, sums.error_exponent) if sums.elements else None


def _max_abs(sums: Sums) -> float | None:
    """Return the largest absolute difference, in the tensors' unit."""
    return _finite(sums.error_largest) if sums.elements else None


def _snr_db(sums: Sums) -> float | None:
    """Return the signal-to-noise ratio in dB: 10 log10(sum of reference squared / sum of error squared).

    This is the definition of ExecuTorch's Inspector and of torch.ao.ns (`compute_sqnr`: 20 log10 of the norms' ratio).
    None for a reference of zeros, and for an error of zero, where the ratio is infinite and the status is `exact`.
    """
    if not sums.reference_energy or not sums.error_energy or not math.isfinite(sums.error_energy):
        return None
    doublings = 2 * (sums.reference_exponent - sums.error_exponent)
    return 10 * (math.log10(sums.reference_energy) - math.log10(sums.error_energy) + doublings * math.log10(2))


def _cosine(sums: Sums) -> float | None:
    """Return the cosine of the tensors: sum of products / product of Euclidean norms. None if a tensor is all zeros."""
    if not sums.reference_energy or not sums.actual_energy:
        return None
    similarity = sums.product / (math.sqrt(sums.actual_energy) * math.sqrt(sums.reference_energy))
    return min(1.0, max(-1.0, similarity))  # rounding may exceed the bounds


def _l1(sums: Sums) -> float | None:
    """Return the sum of absolute differences, in the tensors' unit: the L1 of ExecuTorch's Inspector."""
    return _finite(sums.error_absolute, sums.error_exponent) if sums.elements else None


def _nmse(sums: Sums) -> float | None:
    """Return the mean squared error divided by the reference's mean square. None for a reference of zeros."""
    if not sums.reference_energy:
        return None
    return _finite(sums.error_energy / sums.reference_energy, 2 * (sums.error_exponent - sums.reference_exponent))


def _relative_l1(sums: Sums) -> float | None:
    """Return the mean absolute error divided by the reference's mean absolute value. None for a reference of zeros."""
    reference = np.ldexp(whole(sums.reference).astype(np.float64), -sums.reference_exponent)
    reference_absolute = float(np.abs(reference).sum())
    if not reference_absolute:
        return None
    return _finite(sums.error_absolute / reference_absolute, sums.error_exponent - sums.reference_exponent)


def _psnr_db(sums: Sums) -> float | None:
    """Return the peak signal-to-noise ratio in dB: 20 log10(peak / root mean squared error).

    The peak is the largest absolute value of the reference. None for a reference of zeros, and for an error of zero.
    """
    largest = sums.largest(sums.reference)
    if not largest or not sums.error_energy or not math.isfinite(sums.error_energy):
        return None
    peak, noise = math.log10(largest), math.log10(sums.error_energy) - math.log10(sums.elements)
    return 10 * (2 * peak - noise - 2 * sums.error_exponent * math.log10(2))


def _max_ulp(sums: Sums) -> float | None:
    """Return the largest difference in units in the last place of the reference's dtype.

    A unit in the last place is the distance to the next number of larger magnitude. None for a reference that is not
    floating point.
    """
    reference = whole(sums.reference)
    if reference.dtype.kind != "f" or not sums.elements:
        return None
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        ulp = np.spacing(np.abs(reference)).astype(np.float64)
        return _finite(float((_absolute_error(sums) / ulp).max()))


def _steps(sums: Sums, reduce: Callable[[Array], Any]) -> float | None:
    """Return a measure of the differences in quantization steps, whose size can differ per channel.

    None without qparams.
    """
    if sums.qparams is None or not sums.elements:
        return None
    with np.errstate(over="ignore"):
        return _finite(float(reduce(_absolute_error(sums) / step_sizes(sums.qparams, sums.reference.shape))))


def _absolute_error(sums: Sums) -> Array:
    return np.abs(whole(sums.actual).astype(np.float64) - whole(sums.reference).astype(np.float64))


def _finite(value: float, exponent: int = 0) -> float | None:
    """Return value * 2**exponent, or None if float64 cannot hold it."""
    try:
        scaled = math.ldexp(value, exponent)
    except OverflowError:
        return None
    return scaled if math.isfinite(scaled) else None


METRICS: Mapping[str, Callable[[Sums], float | None]] = {
    "mse": _mse,
    "mean_abs": _mean_abs,
    "max_abs": _max_abs,
    "snr_db": _snr_db,
    "cosine": _cosine,
    "l1": _l1,
    "nmse": _nmse,
    "relative_l1": _relative_l1,
    "psnr_db": _psnr_db,
    "sqnr_db": _snr_db,  # the name that torchao's `compute_error` uses
    "max_ulp": _max_ulp,
    "mean_steps": partial(_steps, reduce=np.mean),
    "max_steps": partial(_steps, reduce=np.max),
}
"""Every metric, by its name in `qnnsweep.conf.names.METRICS`. Those that are fields of `Gap` are in every row."""
_IN_EVERY_ROW = tuple(field.name for field in fields(Gap))
