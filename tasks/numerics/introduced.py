"""The error that an operator introduced: its value on the device against the right value for the same inputs."""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from tasks.numerics.dequantize import dequantize, quantize
from tasks.numerics.element_use import Array, CapturedValue
from tasks.numerics.metrics import Sums, select, signed_error, sums_of_finite
from tasks.numerics.steps import StepCounts
from tasks.records import Gap

_FEW = 30  # errors of fewer elements can be equal by chance
_CHANNEL_ELEMENTS = 16  # a channel with fewer elements is not judged on its own


@dataclass(frozen=True, slots=True)
class Difference:
    """A value on the device, the right value rounded to the device's grid, and the error in steps of that grid."""

    actual: Array
    expected: Array
    steps: Array | None  # None for floats without a grid
    differs: Array | None = None  # for a value that is not floating point: which elements are wrong

    @classmethod
    def between(cls, actual: Array, result: Array, captured: CapturedValue) -> "Difference":
        """Return the difference of `actual`, the dequantized elements of `captured`, and the host's `result`."""
        if captured.qparams is not None:
            expected = quantize(result, captured.qparams)
            return cls(actual, dequantize(expected, captured.qparams), captured.elements - expected)
        if actual.dtype.kind != "f":
            steps = actual.astype(np.float64) - result.astype(np.float64)
            return cls(actual, result, steps, actual != result)
        return cls(actual, result, None)

    @property
    def differing(self) -> Array:
        """Return which elements are wrong."""
        return self.actual != self.expected if self.differs is None else self.differs

    @property
    def scatter(self) -> float:
        """Return the sum of the squared errors about their mean, infinite if an element is not finite on one side only.

        A constant error has no scatter, so it does not decide which of two results the device rounded. The errors of
        few elements are equal by chance: they are squared as they are.
        """
        error = signed_error(self.actual, self.expected, np.float64).reshape(-1)
        with np.errstate(invalid="ignore", over="ignore"):
            energy, total = float(np.einsum("i,i->", error, error)), float(error.sum())
            scatter = energy if error.size < _FEW else energy - total * total / error.size
        return math.inf if math.isnan(scatter) else scatter


@dataclass(frozen=True, kw_only=True, slots=True)
class Introduced:
    """The error that one operator introduced, over its used elements.

    The fields with `steps` are in steps of the device's grid, and None for floats without a grid. An integer or a
    boolean has the grid of the integers.
    """

    gap: Gap
    elements: int = 0
    differing: int | None = None
    """For a value that is not floating point, the number of wrong elements; None for floats."""
    nonfinite: int = 0
    """The number of elements that are infinite or NaN on one side, and something else on the other."""
    steps: StepCounts | None = field(default=None, compare=False, repr=False)
    """The number of elements per signed error."""
    max_steps: float | None = None
    p999_steps: float | None = None
    rms_steps: float | None = None
    mean_steps: float | None = None
    """The mean of the signed errors. A device that rounds to the nearest step has a mean near 0."""
    mean_steps_error: float | None = None
    """The standard error of `mean_steps`."""
    gain: float | None = None
    """The slope of the regression of the device's value on the right value; None if the right value is constant."""
    gain_error: float | None = None
    """The standard error of `gain`."""
    channel_snr_db: float | None = None
    """The SNR of the worst channel, in dB; None if no channel has an error.

    A channel is a slice of at least 16 elements along any axis. Its noise is compared with the mean square of the
    channel or, if that is larger, of the whole tensor.
    """


def introduced_error(difference: Difference, used: Array | None = None) -> Introduced:
    """Return the measures of a difference. `used`: a mask of the elements that count; None if all elements count."""
    actual, expected, steps = difference.actual, difference.expected, difference.steps
    sums, counted = sums_of_finite(actual, expected, used)
    nonfinite = (
        0 if counted is used else int(np.count_nonzero(_odd(actual, expected) & (True if used is None else used)))
    )
    measured = Introduced(gap=sums.gap, elements=sums.elements + nonfinite, nonfinite=nonfinite)
    if difference.differs is not None:
        wrong = difference.differs if counted is None else difference.differs & counted
        measured = replace(measured, differing=int(np.count_nonzero(wrong)))
    if steps is not None and sums.elements:
        measured = _with_steps(measured, StepCounts.of(select(steps, counted)))
    if actual.dtype.kind == "f" and measured.gap.max_abs:
        error = actual - expected
        if counted is not None:
            error, expected = (_zeroed(tensor, counted) for tensor in (error, expected))
        measured = replace(measured, channel_snr_db=_channel_snr_db(error, expected, counted))
        measured = _with_gain(measured, sums)
    return measured


def _zeroed(tensor: Array, counted: Array) -> Array:
    """Return the tensor with zeros at the elements that do not count."""
    with np.errstate(invalid="ignore"):
        zeroed = tensor * counted  # three times faster than `np.where`, but infinities become NaN
    return zeroed if np.isfinite(zeroed).all() else np.where(counted, tensor, 0)


def _odd(actual: Array, expected: Array) -> Array:
    """Return which elements are infinite or NaN on one side, and something else on the other."""
    finite, nan = np.isfinite(actual) & np.isfinite(expected), np.isnan(actual) & np.isnan(expected)
    return ~finite & (actual != expected) & ~nan


def _with_steps(measured: Introduced, steps: StepCounts) -> Introduced:
    mean, rms = steps.mean, steps.rms
    return replace(
        measured,
        steps=steps,
        max_steps=steps.largest,
        p999_steps=steps.quantile(0.999),
        rms_steps=rms,
        mean_steps=mean,
        mean_steps_error=math.sqrt(max(rms**2 - mean**2, 0.0) / steps.total),
    )


def _with_gain(measured: Introduced, sums: Sums) -> Introduced:
    """Add the slope of the least-squares line of the actual tensor over the reference, and its standard error."""
    elements = sums.elements
    if sums.actual_exponent or sums.reference_exponent or elements < 3:
        return measured
    mean_x, mean_y = sums.mean(sums.reference), sums.mean(sums.actual)
    with np.errstate(over="ignore", invalid="ignore"):
        spread, product, other = (
            total - elements * mean_a * mean_b
            for total, mean_a, mean_b in (
                (sums.reference_energy, mean_x, mean_x),
                (sums.product, mean_x, mean_y),
                (sums.actual_energy, mean_y, mean_y),
            )
        )
    # A difference of sums below their rounding is no spread.
    if not math.isfinite(spread + product + other) or spread <= 1e-12 * elements * mean_x**2:
        return measured
    gain = product / spread
    residual = max(other - gain * product, 0.0)
    return replace(measured, gain=gain, gain_error=math.sqrt(residual / (elements - 2) / spread))


def _channel_snr_db(error: Array, expected: Array, counted: Array | None) -> float | None:
    """Return the SNR of the worst channel, in dB. Elements that do not count are 0 in both tensors."""
    elements = error.size if counted is None else int(np.count_nonzero(counted))
    noises, signals = _energies(error), _energies(expected)
    members = None if counted is None else _sums_by_channel(counted)
    ratios: list[float] = []
    for axis, (noise, signal) in enumerate(zip(noises, signals, strict=True)):
        if noise.size == 1 or error.size // noise.size < _CHANNEL_ELEMENTS:
            continue
        sizes = np.maximum(members[axis], 1) if members else np.full(noise.size, error.size // noise.size)
        wrong = (noise > 0) & (sizes >= _CHANNEL_ELEMENTS)
        whole = float(signal.sum()) / max(elements, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            ratios += (10 * np.log10(np.maximum(signal, whole * sizes)[wrong] / noise[wrong])).tolist()
    return min((ratio for ratio in ratios if math.isfinite(ratio)), default=None)


def _energies(tensor: Array) -> list[Array]:
    """Return, per axis, the sums of the squares of all channels."""
    if tensor.ndim == 0:
        return []
    rows = tensor.reshape(-1, tensor.shape[-1])
    rest = np.einsum("ij,ij->i", rows, rows, dtype=np.float64).reshape(tensor.shape[:-1])
    return [*_sums_by_channel(rest), np.einsum("ij,ij->j", rows, rows, dtype=np.float64)]


def _sums_by_channel(tensor: Array) -> list[Array]:
    """Return, per axis, the sums of all channels."""
    if tensor.ndim == 0:
        return []
    return [*_sums_by_channel(tensor.sum(-1)), tensor.reshape(-1, tensor.shape[-1]).sum(0)]
