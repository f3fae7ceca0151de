"""How far one tensor is from another: plain functions of (actual, reference) in one table.

All compute in float64 whatever the tensors' dtype; integers beyond 2**53 are rounded to it. Both tensors have one shape
and finite elements. None is "not defined": no elements, or what a metric's own docstring
names. An infinity is never returned: a value that float64 cannot hold is None too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.findings import Gap
from tasks.records import Quantization

Array = NDArray[Any]
Metric = Callable[[Array, Array], float | None]

# Squares of numbers within 2**±256 and sums of them are far from float64's limits; others are scaled first.
_SAFE_EXPONENT = 256
_SAFE_ENERGY = 2.0**512
_BLOCK = 2**16


@dataclass(frozen=True, slots=True)
class _Sums:
    """All that the metrics need. Sums are of elements scaled by 2**-exponent of their own side, the largest is not."""

    elements: int
    error_absolute: float
    error_energy: float
    error_exponent: int
    error_largest: float
    reference_absolute: float
    reference_largest: float
    reference_energy: float
    reference_exponent: int
    actual_energy: float
    product: float


def mse(actual: Array, reference: Array) -> float | None:
    """Mean of squared differences, in the square of the tensors' unit."""
    return _mse(_sums(actual, reference))


def mean_abs(actual: Array, reference: Array) -> float | None:
    """Mean of absolute differences, in the tensors' unit."""
    return _mean_abs(_sums(actual, reference))


def max_abs(actual: Array, reference: Array) -> float | None:
    """Largest absolute difference, in the tensors' unit."""
    return _max_abs(_sums(actual, reference))


def snr_db(actual: Array, reference: Array) -> float | None:
    """Signal-to-noise ratio in dB: 10 log10(sum of reference squared / sum of error squared).

    The definition of ExecuTorch's Inspector and of torch.ao.ns (`compute_sqnr`: 20 log10 of the norms' ratio).
    None for a reference of zeros, and for an error of zero, whose ratio is infinite: its status is `exact`.
    """
    return _snr_db(_sums(actual, reference))


def cosine(actual: Array, reference: Array) -> float | None:
    """Cosine similarity, from -1 to 1: sum of products over the product of the Euclidean norms.

    None if a side is all zeros.
    """
    return _cosine(_sums(actual, reference))


def l1(actual: Array, reference: Array) -> float | None:
    """Sum of absolute differences, in the tensors' unit: the L1 of ExecuTorch's Inspector. It grows with the tensor."""
    return _l1(_sums(actual, reference))


def nmse(actual: Array, reference: Array) -> float | None:
    """Mean squared error over the reference's mean square. None for a reference of zeros."""
    return _nmse(_sums(actual, reference))


def relative_l1(actual: Array, reference: Array) -> float | None:
    """Mean absolute error over the reference's mean absolute value. None for a reference of zeros."""
    return _relative_l1(_sums(actual, reference))


def psnr_db(actual: Array, reference: Array) -> float | None:
    """Peak signal-to-noise ratio in dB: 20 log10(largest absolute value of the reference / root mean squared error).

    None for a reference of zeros, and for an error of zero.
    """
    return _psnr_db(_sums(actual, reference))


def max_ulp(actual: Array, reference: Array) -> float | None:
    """Largest difference in units in the last place: the distance to the next number of the reference's own dtype.

    None for a reference that is not floating point.
    """
    if reference.dtype.kind != "f" or not reference.size:
        return None
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        place = np.spacing(np.abs(reference)).astype(np.float64)
        error = np.abs(actual.astype(np.float64) - reference.astype(np.float64))
        return _finite(float((error / place).max()), 0)


def steps(actual: Array, reference: Array, grid: Quantization | None) -> tuple[float | None, float | None]:
    """Mean and largest difference in quantization steps of the grid, per channel where the grid is.

    Both None without a grid or elements.
    """
    if grid is None or not reference.size:
        return None, None
    scale = np.asarray(grid.scale, np.float64)
    if grid.axis is not None:
        scale = scale.reshape([-1 if axis == grid.axis % reference.ndim else 1 for axis in range(reference.ndim)])
    with np.errstate(over="ignore"):
        error = np.abs(actual.astype(np.float64) - reference.astype(np.float64)) / scale
        return _finite(float(error.mean()), 0), _finite(float(error.max()), 0)


METRICS: dict[str, Metric] = {
    "mse": mse,
    "mean_abs": mean_abs,
    "max_abs": max_abs,
    "snr_db": snr_db,
    "cosine": cosine,
}
"""Name in `Gap` and in the tables, to function."""


def gap(actual: Array, reference: Array) -> Gap:
    """All of `METRICS`, visiting the tensors once."""
    sums = _sums(actual, reference)
    return Gap(
        mse=_mse(sums),
        mean_abs=_mean_abs(sums),
        max_abs=_max_abs(sums),
        snr_db=_snr_db(sums),
        cosine=_cosine(sums),
    )


def more(
    names: Iterable[str], actual: Array, reference: Array, grid: Quantization | None = None
) -> dict[str, float | None]:
    """Those of `MORE_METRICS` that are named, all but ulps and steps from one visit. Raises KeyError for others."""
    sums = _sums(actual, reference)
    of_their_own: dict[str, Callable[[], float | None]] = {
        "max_ulp": lambda: max_ulp(actual, reference),
        "mean_steps": lambda: steps(actual, reference, grid)[0],
        "max_steps": lambda: steps(actual, reference, grid)[1],
    }
    return {name: of_their_own[name]() if name in of_their_own else _OF_SUMS[name](sums) for name in names}


def top1(values: Array) -> int | None:
    """Index of the largest element of the flattened tensor, the first of equals.

    None where "the largest" says nothing: a scalar, fewer than two elements, or a NaN among them.
    """
    if values.ndim == 0 or values.size < 2 or (values.dtype.kind == "f" and bool(np.isnan(values).any())):
        return None
    return int(np.argmax(values))


def _sums(actual: Array, reference: Array) -> _Sums:
    if actual.shape != reference.shape:
        raise ValueError(f"tensors of shapes {actual.shape} and {reference.shape} have no gap")
    a, r = actual.reshape(-1), reference.reshape(-1)
    sums = _visited(a, r, 0, 0, 0)
    if all(
        1 / _SAFE_ENERGY < each < _SAFE_ENERGY
        for each in (sums.error_energy, sums.reference_energy, sums.actual_energy)
    ):
        return sums
    largest = float(np.abs(a.astype(np.float64)).max(initial=0.0))
    exponents = _exponent(largest), _exponent(sums.reference_largest), _exponent(sums.error_largest)
    return _visited(a, r, *exponents) if any(exponents) else sums


def _visited(
    actual: Array, reference: Array, actual_exponent: int, reference_exponent: int, error_exponent: int
) -> _Sums:
    """The sums of two flat tensors, block by block: what is computed on the way stays in the processor's cache."""
    absolute, energies, largest = np.zeros(2), np.zeros(4), np.zeros(2)
    # Two numbers near float64's own limits; `_finite` turns the infinity into None.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for start in range(0, actual.size, _BLOCK):
            a = actual[start : start + _BLOCK].astype(np.float64, copy=False)
            r = reference[start : start + _BLOCK].astype(np.float64, copy=False)
            error = np.subtract(a, r)
            np.abs(error, out=error)
            np.maximum(largest, (error.max(), max(r.max(), -r.min())), out=largest)
            if actual_exponent or reference_exponent or error_exponent:
                a, r = np.ldexp(a, -actual_exponent), np.ldexp(r, -reference_exponent)
                error = np.ldexp(error, -error_exponent)
            energies += (_dot(error, error), _dot(r, r), _dot(a, a), _dot(a, r))
            absolute += (error.sum(), np.abs(r).sum())
    return _Sums(
        elements=actual.size,
        error_absolute=float(absolute[0]),
        error_energy=float(energies[0]),
        error_exponent=error_exponent,
        error_largest=float(largest[0]),
        reference_absolute=float(absolute[1]),
        reference_largest=float(largest[1]),
        reference_energy=float(energies[1]),
        reference_exponent=reference_exponent,
        actual_energy=float(energies[2]),
        product=float(energies[3]),
    )


def _dot(left: Array, right: Array) -> float:
    """Sum of products, the same on any number of cores: `np.dot` splits it by BLAS's threads, which also spin."""
    return float(np.einsum("i,i->", left, right))


def _exponent(largest: float) -> int:
    """Of the power of two that brings the largest near one, if it is far from it."""
    exponent = math.frexp(largest)[1] if largest and math.isfinite(largest) else 0
    return exponent if abs(exponent) > _SAFE_EXPONENT else 0


def _mse(sums: _Sums) -> float | None:
    return _finite(sums.error_energy / sums.elements, 2 * sums.error_exponent) if sums.elements else None


def _mean_abs(sums: _Sums) -> float | None:
    return _finite(sums.error_absolute / sums.elements, sums.error_exponent) if sums.elements else None


def _max_abs(sums: _Sums) -> float | None:
    return _finite(sums.error_largest, 0) if sums.elements else None


def _snr_db(sums: _Sums) -> float | None:
    if not sums.reference_energy or not sums.error_energy or not math.isfinite(sums.error_energy):
        return None
    doublings = 2 * (sums.reference_exponent - sums.error_exponent)
    return 10 * (math.log10(sums.reference_energy) - math.log10(sums.error_energy) + doublings * math.log10(2))


def _cosine(sums: _Sums) -> float | None:
    if not sums.reference_energy or not sums.actual_energy:
        return None
    similarity = sums.product / (math.sqrt(sums.actual_energy) * math.sqrt(sums.reference_energy))
    return min(1.0, max(-1.0, similarity))  # rounding may step over the bounds


def _l1(sums: _Sums) -> float | None:
    return _finite(sums.error_absolute, sums.error_exponent) if sums.elements else None


def _nmse(sums: _Sums) -> float | None:
    if not sums.reference_energy:
        return None
    return _finite(sums.error_energy / sums.reference_energy, 2 * (sums.error_exponent - sums.reference_exponent))


def _relative_l1(sums: _Sums) -> float | None:
    if not sums.reference_absolute:
        return None
    return _finite(sums.error_absolute / sums.reference_absolute, sums.error_exponent - sums.reference_exponent)


def _psnr_db(sums: _Sums) -> float | None:
    if not sums.reference_largest or not sums.error_energy or not math.isfinite(sums.error_energy):
        return None
    peak, noise = math.log10(sums.reference_largest), math.log10(sums.error_energy) - math.log10(sums.elements)
    return 10 * (2 * peak - noise - 2 * sums.error_exponent * math.log10(2))


def _finite(value: float, exponent: int) -> float | None:
    """value * 2**exponent, or None if that is beyond float64."""
    try:
        scaled = math.ldexp(value, exponent)
    except OverflowError:
        return None
    return scaled if math.isfinite(scaled) else None


_OF_SUMS: dict[str, Callable[[_Sums], float | None]] = {
    "mse": _mse,
    "mean_abs": _mean_abs,
    "max_abs": _max_abs,
    "snr_db": _snr_db,
    "cosine": _cosine,
    "l1": _l1,
    "nmse": _nmse,
    "relative_l1": _relative_l1,
    "psnr_db": _psnr_db,
    "sqnr_db": _snr_db,  # torchao's `compute_error` under its own name
}
MORE_METRICS = frozenset({*_OF_SUMS, "max_ulp", "mean_steps", "max_steps"})
"""What `measure.metrics` can name."""
