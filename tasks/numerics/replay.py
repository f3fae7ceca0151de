"""Introduced error: the difference between an operator's results on the device and on the host for the same inputs.

The inputs are the device's own. The host's result is that of the reference operator, rounded to the device's grid.
Unused elements are left out: a compiler that folds a clamp into the preceding operator does not compute the elements
that the clamp discards.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from tasks.numerics.dequantize import dequantize, quantize
from tasks.numerics.element_use import Array, CapturedValue, ElementUse, Kernels, Value
from tasks.numerics.metrics import gap, snr_db
from tasks.records import Gap


@dataclass(frozen=True, kw_only=True, slots=True)
class Introduced:
    """The error that one operator introduced, over its used elements."""

    gap: Gap
    steps: float | None  # the largest error, in steps of the device's grid; None for floats
    nonfinite: int = 0  # the number of elements that are infinite or NaN on one side, and something else on the other
    masked: int = 0  # the number of unused elements that differ
    masked_by: tuple[int, ...] = ()  # the readers that do not use all elements
    spans: tuple[int, ...] = ()  # earlier operators that were not captured: `gap` includes their error
    used_mask: Array | None = field(default=None, compare=False, repr=False)
    """The mask of the used elements, with the operator's shape; None if all elements are used."""
    error: Array | None = field(default=None, compare=False, repr=False)
    """actual - expected at used elements and 0 elsewhere, in float32; None unless the operator is suspect."""


IsSuspect = Callable[[int, Introduced], bool]
"""Decides whether an operator's error is so large that the used elements of the operator must be determined."""


def replay(
    kernels: Kernels,
    captured: Mapping[int, CapturedValue],
    is_suspect: IsSuspect,
    requantized: Mapping[tuple[int, int], CapturedValue] = MappingProxyType({}),
) -> dict[int, Introduced]:
    """Return the error that every captured operator introduced, by operator index.

    `requantized`: per reader and source, the source's value as this reader gets it, if the device converts the value to
    another grid for the reader. Operators that the host cannot compute again are left out: `kernels.refusals` has the
    reasons.
    """
    values: dict[int, Value] = {}
    uncaptured: dict[int, tuple[int, ...]] = {}
    introduced: dict[int, Introduced] = {}
    for index, sources in enumerate(kernels.sources):
        result = kernels.call(index, values_for(index, sources, values, requantized))
        read = (source for source in sources if (index, source) not in requantized)
        spans = tuple(dict.fromkeys(span for source in read for span in uncaptured.get(source, ())))
        value = captured.get(index)
        if value is None:
            if result is not None:
                values[index] = result
            adds_nothing = index in kernels.constants or index in kernels.data_movement_ops
            uncaptured[index] = spans if adds_nothing else (*spans, index)
            continue
        if index in kernels.getitem_index:  # the value of a getitem is an element of the tuple that it reads
            spans = tuple(span for span in spans if span not in sources)
        actual = value.dequantized()
        values[index] = actual.astype(np.float32) if actual.dtype == np.float64 else actual
        if isinstance(result, np.ndarray) and result.shape == actual.shape:
            introduced[index] = _introduced(_Difference.between(actual, result, value), spans)
            values[index] = actual.astype(result.dtype)
    element_use = ElementUse(kernels, captured, values)
    for index in [index for index, operator in introduced.items() if is_suspect(index, operator)]:
        fused = _fused(index, introduced[index].spans, kernels, captured, values, requantized)
        if fused is not None and not is_suspect(index, fused):
            introduced[index] = fused
            continue
        result = kernels.call(index, values_for(index, kernels.sources[index], values, requantized))
        assert isinstance(result, np.ndarray), "it was computed before"
        difference = _Difference.between(captured[index].dequantized(), result, captured[index])
        used_mask, masking_readers = element_use.used_mask(index, difference.actual, difference.expected)
        introduced[index] = _over_used_elements(introduced[index], difference, used_mask, masking_readers)
    return introduced


def values_for(
    reader: int,
    sources: Sequence[int],
    values: Mapping[int, Value],
    requantized: Mapping[tuple[int, int], CapturedValue],
) -> Mapping[int, Value]:
    """Return the values from which `reader` is computed: the requantized value of a source that has one, else `values`.

    `sources`: the operators whose values the reader reads.
    """
    converted: dict[int, Value] = {}
    for source in sources:
        if (reader, source) in requantized:
            value, like = requantized[reader, source].dequantized(), values.get(source)
            converted[source] = value.astype(like.dtype if isinstance(like, np.ndarray) else np.float32)
    return {**values, **converted} if converted else values


def _fused(
    index: int,
    spans: tuple[int, ...],
    kernels: Kernels,
    captured: Mapping[int, CapturedValue],
    values: Mapping[int, Value],
    requantized: Mapping[tuple[int, int], CapturedValue],
) -> Introduced | None:
    """Replay an operator on the unrounded results of the operators whose values it reads.

    A compiler that fuses two operators never rounds the value between them, although a debug program logs a rounded
    value. Return None if none of the values that the operator reads has a grid.
    """
    unrounded: dict[int, Value] = {}
    for source in kernels.sources[index]:
        if source in captured and captured[source].qparams is not None and (index, source) not in requantized:
            result = kernels.call(source, values_for(source, kernels.sources[source], values, requantized))
            if isinstance(result, np.ndarray):
                unrounded[source] = result
    rounded = values_for(index, kernels.sources[index], values, requantized)
    result = kernels.call(index, ChainMap(unrounded, dict(rounded))) if unrounded else None
    if not isinstance(result, np.ndarray):
        return None
    difference = _Difference.between(captured[index].dequantized(), result, captured[index])
    return _introduced(difference, tuple(dict.fromkeys((*spans, *unrounded))))


def conversion_error(value: CapturedValue, source: Array) -> Introduced:
    """Return the error that a conversion to another grid introduced. `source`: the value before it, on the device."""
    return _introduced(_Difference.between(value.dequantized(), source, value), ())


def effect_db(kernels: Kernels, index: int, error: Array, reference: Mapping[int, Value]) -> float | None:
    """Return the lowest SNR, in dB, of the reference's final outputs after `error` is added to one operator's value.

    Return None if no output changes, or if an operator that depends on the changed value cannot be computed.
    `error`: has the operator's shape. `reference`: every operator's value in the reference's own run.
    """
    clean = reference[index]
    assert isinstance(clean, np.ndarray), "an operator with an error of its own is a tensor"
    changed: dict[int, Value] = {index: (clean + error).astype(clean.dtype)}
    values = ChainMap(changed, dict(reference))
    for later in range(index + 1, len(kernels.sources)):
        if any(source in changed for source in kernels.sources[later]):
            result = kernels.call(later, values)
            if result is None:
                return None
            changed[later] = result
    outputs = list(zip(kernels.answer(values), kernels.answer(reference), strict=True))
    ratios = [snr_db(*pair) for pair in outputs if np.isfinite(pair).all()]
    return min((ratio for ratio in ratios if ratio is not None), default=None)


@dataclass(frozen=True, slots=True)
class _Difference:
    """A value on the device, the right value rounded to the device's grid, and the error in steps of that grid."""

    actual: Array
    expected: Array
    steps: Array | None

    @classmethod
    def between(cls, actual: Array, result: Array, captured: CapturedValue) -> "_Difference":
        if captured.qparams is not None:
            expected = quantize(result, captured.qparams)
            return cls(actual, dequantize(expected, captured.qparams), captured.elements - expected)
        if actual.dtype.kind != "f":
            return cls(actual, result, actual.astype(np.float64) - result.astype(np.float64))
        return cls(actual, result, None)

    def where(self, mask: Array) -> "_Difference":
        return _Difference(self.actual[mask], self.expected[mask], None if self.steps is None else self.steps[mask])


def _introduced(difference: _Difference, spans: tuple[int, ...]) -> Introduced:
    actual, expected = difference.actual, difference.expected
    finite = np.isfinite(actual) & np.isfinite(expected)
    nonfinite = 0
    if not finite.all():
        odd = ~finite & (actual != expected) & ~(np.isnan(actual) & np.isnan(expected))
        nonfinite = int(np.count_nonzero(odd))
        difference = difference.where(finite)
    return Introduced(
        gap=gap(difference.actual, difference.expected),
        steps=None if difference.steps is None else float(np.abs(difference.steps).max(initial=0)),
        nonfinite=nonfinite,
        spans=spans,
    )


def _over_used_elements(
    introduced: Introduced, difference: _Difference, used_mask: Array, masking_readers: tuple[int, ...]
) -> Introduced:
    unused = ~used_mask & (difference.actual != difference.expected)
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        error = np.where(used_mask, difference.actual.astype(np.float64) - difference.expected, 0.0).astype(np.float32)
    if not unused.any():
        return replace(introduced, error=error)
    used = _introduced(difference.where(used_mask), introduced.spans)
    return replace(used, masked=int(unused.sum()), masked_by=masking_readers, used_mask=used_mask, error=error)
