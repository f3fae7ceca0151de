"""The error that an operator introduced: its value on the device against the right value for the same inputs."""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from tasks.numerics.dequantize import dequantize, quantize
from tasks.numerics.element_use import Array, CapturedValue
from tasks.numerics.metrics import gap, signed_error
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
    steps: Array | None = field(default=None, compare=False, repr=False)
    """The absolute errors of all elements."""
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
    counted = np.isfinite(actual) & np.isfinite(expected)
    nonfinite = 0
    if not counted.all():
        odd = ~counted & (actual != expected) & ~(np.isnan(actual) & np.isnan(expected))
        nonfinite = int(np.count_nonzero(odd if used is None else odd & used))
    if used is not None:
        counted &= used
    difference_gap = gap(actual, expected) if counted.all() else gap(actual[counted], expected[counted])
    measured = Introduced(gap=difference_gap, elements=int(np.count_nonzero(counted)) + nonfinite, nonfinite=nonfinite)
    if difference.differs is not None:
        measured = replace(measured, differing=int(np.count_nonzero(difference.differs & counted)))
    if difference.steps is not None:
        measured = _with_steps(measured, difference.steps[counted])
    if actual.dtype.kind == "f" and difference_gap.max_abs:
        if not counted.all():
            actual, expected = np.where(counted, actual, 0.0), np.where(counted, expected, 0.0)
        measured = replace(measured, channel_snr_db=_channel_snr_db(actual, expected, counted))
        measured = _with_gain(measured, actual, expected, int(np.count_nonzero(counted)))
    return measured


def _with_steps(measured: Introduced, steps: Array) -> Introduced:
    """Add the measures in steps. `steps`: the signed errors of the elements that count."""
    if not steps.size:
        return measured
    absolute = np.abs(steps)
    largest, mean = float(absolute.max()), float(steps.mean())
    rms = math.sqrt(float(np.einsum("i,i->", steps, steps)) / steps.size)
    return replace(
        measured,
        steps=absolute,
        max_steps=largest,
        # Sorting takes long, and most operators have no larger error than this.
        p999_steps=float(np.quantile(absolute, 0.999)) if largest > 1 else largest,
        rms_steps=rms,
        mean_steps=mean,
        mean_steps_error=math.sqrt(max(rms**2 - mean**2, 0.0) / steps.size),
    )


def _with_gain(measured: Introduced, actual: Array, expected: Array, elements: int) -> Introduced:
    """Add the slope of the least-squares line of `actual` over `expected`, and the slope's standard error.

    Elements that do not count are 0 in both tensors, and `elements` is the number of those that count.
    """
    y, x = (np.asarray(tensor, np.float64).reshape(-1) for tensor in (actual, expected))
    with np.errstate(over="ignore", invalid="ignore"):
        mean_x, mean_y = float(x.sum()) / elements, float(y.sum()) / elements
        spread, product, other = (
            float(np.einsum("i,i->", a, b)) - elements * mean_a * mean_b
            for a, b, mean_a, mean_b in ((x, x, mean_x, mean_x), (x, y, mean_x, mean_y), (y, y, mean_y, mean_y))
        )
    # A difference of sums below their rounding is no spread.
    if elements < 3 or not math.isfinite(spread + product + other) or spread <= 1e-12 * elements * mean_x**2:
        return measured
    gain = product / spread
    residual = max(other - gain * product, 0.0)
    return replace(measured, gain=gain, gain_error=math.sqrt(residual / (elements - 2) / spread))


def _channel_snr_db(actual: Array, expected: Array, counted: Array) -> float | None:
    """Return the SNR of the worst channel, in dB. Elements that do not count are 0 in both tensors."""
    error = actual - expected
    elements = int(np.count_nonzero(counted))
    whole = float(np.einsum("i,i->", expected.reshape(-1), expected.reshape(-1), dtype=np.float64)) / max(elements, 1)
    ratios: list[float] = []
    for axis, size in enumerate(error.shape):
        if size == 1 or error.size // size < _CHANNEL_ELEMENTS:
            continue
        by_channel = (math.prod(error.shape[:axis]), size, math.prod(error.shape[axis + 1 :]))
        noise, signal = (
            np.einsum("aib,aib->i", tensor.reshape(by_channel), tensor.reshape(by_channel), dtype=np.float64)
            for tensor in (error, expected)
        )
        members = (
            np.count_nonzero(counted.reshape(by_channel), axis=(0, 2)) if elements < error.size else error.size // size
        )
        members = np.maximum(members, 1)
        wrong = (noise > 0) & (members >= _CHANNEL_ELEMENTS)
        with np.errstate(over="ignore", invalid="ignore"):
            ratios += (10 * np.log10(np.maximum(signal, whole * members)[wrong] / noise[wrong])).tolist()
    return min((ratio for ratio in ratios if math.isfinite(ratio)), default=None)
