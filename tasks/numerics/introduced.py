"""The error that an operator introduced: its value on the device against the right value for the same inputs."""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from qnnsweep.tasks.numerics.arithmetic import as_half
from qnnsweep.tasks.numerics.blocks import ONE_THREAD, Array, block_of
from qnnsweep.tasks.numerics.dequantize import quantize
from qnnsweep.tasks.numerics.element_use import CapturedValue
from qnnsweep.tasks.numerics.metrics import Sums, select, signed_error, sums_of_finite
from qnnsweep.tasks.numerics.steps import StepCounts
from qnnsweep.tasks.records import Gap

_FEW = 30  # errors of fewer elements can be equal by chance
_CHANNEL_ELEMENTS = 16  # a channel with fewer elements is not judged on its own


@dataclass(frozen=True, slots=True)
class Difference:
    """A value on the device, and the right value rounded to the device's grid."""

    actual: CapturedValue
    expected: CapturedValue
    differs: Array | None = None
    """For a value that is not floating point, which elements are wrong."""

    @classmethod
    def between(cls, captured: CapturedValue, result: Array) -> "Difference":
        """Return the difference of a captured value and the host's `result`."""
        if captured.qparams is not None:
            rounded = quantize(result, captured.qparams, smallest_type=True)
            return cls(captured, CapturedValue(elements=rounded, qparams=captured.qparams))
        is_float = captured.elements.dtype.kind == "f"
        if captured.half and result.dtype == np.float32:
            result = as_half(result)
        differs = None if is_float else captured.elements != result
        return cls(captured, CapturedValue(elements=result, qparams=None), differs)

    @property
    def differing(self) -> Array:
        """Return which elements are wrong."""
        return self.actual.elements != self.expected.elements if self.differs is None else self.differs

    @property
    def steps(self) -> Array | None:
        """Return the signed error in steps of the grid. It is None for floats without a grid."""
        actual, expected = self.actual.elements, self.expected.elements
        if self.actual.qparams is None and actual.dtype.kind == "f":
            return None
        small = all(tensor.dtype.kind in "iu" and tensor.dtype.itemsize <= 2 for tensor in (actual, expected))
        return np.subtract(actual, expected, dtype=np.int32 if small else np.float64)

    @property
    def scatter(self) -> float:
        """Return the sum of the squared errors about their mean, infinite if an element is not finite on one side only.

        It is in the square of steps, for floats without a grid in the square of the tensors' unit. A constant error has
        no scatter, so it does not decide which of two results the device rounded. The errors of few elements are equal
        by chance: they are squared as they are.
        """
        error = self.steps
        if error is None:
            error = signed_error(self.actual.elements, self.expected.elements, np.float64)
        error = error.reshape(-1).astype(np.float64, copy=False)
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
    equal: float | None = None
    """The share of the elements that are right; None if no element counts."""
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
    actual, expected = difference.actual, difference.expected
    sums, counted = sums_of_finite(actual, expected, used)
    nonfinite = 0
    if counted is not used:
        odd = _odd(actual.dequantized(), expected.dequantized())
        nonfinite = int(np.count_nonzero(odd if used is None else odd & used))
    measured = Introduced(gap=sums.gap, elements=sums.elements + nonfinite, nonfinite=nonfinite)
    if difference.differs is not None:
        wrong = difference.differs if counted is None else difference.differs & counted
        measured = replace(measured, differing=int(np.count_nonzero(wrong)))
    if sums.elements and (steps := difference.steps) is not None:
        measured = _with_steps(measured, StepCounts.of(steps, counted))
    if difference.differs is None and measured.gap.max_abs:
        measured = replace(measured, channel_snr_db=_channel_snr_db(difference, counted))
        measured = _with_gain(measured, sums)
    if measured.elements:
        wrong = nonfinite + _wrong(measured, difference, counted)
        measured = replace(measured, equal=1 - wrong / measured.elements)
    return measured


def _wrong(measured: Introduced, difference: Difference, counted: Array | None) -> int:
    """Return the number of finite elements that are wrong. `counted`: a mask of them; None if all are finite."""
    if measured.differing is not None:
        return measured.differing
    if measured.steps is not None:
        return measured.steps.beyond(0)
    if not measured.gap.max_abs:
        return 0
    if not difference.actual.half:
        return int(np.count_nonzero(select(difference.differing, counted)))
    with np.errstate(over="ignore"):  # the simulator converts a float16 to float32 with errors of 1.2e-7
        actual, expected = (one.elements.astype(np.float16) for one in (difference.actual, difference.expected))
    return int(np.count_nonzero(select(actual != expected, counted)))


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
    mean_x, mean_y = sums.reference_sum / elements, sums.actual_sum / elements
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


def _channel_snr_db(difference: Difference, counted: Array | None) -> float | None:
    """Return the SNR of the worst channel, in dB. `counted`: a mask of finite elements; None if all count."""
    size = difference.actual.size
    elements = size if counted is None else int(np.count_nonzero(counted))
    noises, signals = _energies(difference, counted)
    members = None if counted is None else _sums_by_channel(counted)
    ratios: list[Array] = []
    for axis, (noise, signal) in enumerate(zip(noises, signals, strict=True)):
        if noise.size == 1 or size // noise.size < _CHANNEL_ELEMENTS:
            continue
        sizes = np.maximum(members[axis], 1) if members else np.full(noise.size, size // noise.size)
        wrong = (noise > 0) & (sizes >= _CHANNEL_ELEMENTS)
        whole = float(signal.sum()) / max(elements, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            ratios.append(10 * np.log10(np.maximum(signal, whole * sizes)[wrong] / noise[wrong]))
    finite = [ratio.min(initial=math.inf, where=np.isfinite(ratio)) for ratio in ratios]
    worst = float(min(finite, default=math.inf))
    return worst if math.isfinite(worst) else None


def _energies(difference: Difference, counted: Array | None) -> tuple[list[Array], list[Array]]:
    """Return the sums of the squares of all channels, per axis: those of the error and those of the right value."""
    actual, expected = difference.actual, difference.expected
    if not actual.shape:
        return [], []
    width = actual.shape[-1]
    height, rows = actual.size // width, max(1, ONE_THREAD // width)
    by_row, by_column, ones = np.empty((2, height)), np.zeros((2, width)), np.ones(max(rows, width))
    mask = None if counted is None else counted.reshape(-1)
    for start in range(0, height, rows):
        part = slice(start * width, min(start + rows, height) * width)
        right = block_of(expected, part)
        with np.errstate(over="ignore", invalid="ignore"):
            error = block_of(actual, part) - right
            for side, tensor in enumerate((error, right)):
                tensor = tensor if mask is None else np.where(mask[part], tensor, 0)
                squares = np.square(tensor).reshape(-1, width)
                by_row[side, start : start + rows] = squares @ ones[:width]
                by_column[side] += ones[: len(squares)] @ squares
    noises, signals = (
        [*_sums_by_channel(rest.reshape(actual.shape[:-1])), column]
        for rest, column in zip(by_row, by_column, strict=True)
    )
    return noises, signals


def _sums_by_channel(tensor: Array) -> list[Array]:
    """Return, per axis, the sums of all channels."""
    if tensor.ndim == 0:
        return []
    return [*_sums_by_channel(tensor.sum(-1)), tensor.reshape(-1, tensor.shape[-1]).sum(0)]
