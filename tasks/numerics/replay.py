"""Which operator makes an error and which only hands it on: every operator again, on the device's own inputs.

*Introduced* is the device's value against the reference operator's on what the device itself fed it, put on the
device's grid. Elements that no reader reads are left out: a compiler that folds a clamp into the operator before it
does not compute what the clamp throws away.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tasks.numerics.dequantize import dequantize, quantize
from tasks.numerics.element_use import Array, CapturedValue, ElementUse, Kernels, Value
from tasks.numerics.metrics import gap, snr_db
from tasks.records import Gap


@dataclass(frozen=True, kw_only=True, slots=True)
class Introduced:
    """What one operator added to the error, over the elements that somebody reads."""

    gap: Gap
    steps: float | None
    """The largest error, in steps of the device's grid; None for floats."""
    nonfinite: int = 0
    """Elements that are infinite or NaN on one side and not, or otherwise so, on the other."""
    masked: int = 0
    """Elements that differ and that nobody reads."""
    masked_by: tuple[int, ...] = ()
    """The readers that discard them."""
    spans: tuple[int, ...] = ()
    """Operators before this one that the device did not show: their error is part of this one's."""
    used_mask: Array | None = field(default=None, compare=False, repr=False)
    """Which elements are read; None for all of them."""
    error: Array | None = field(default=None, compare=False, repr=False)
    """actual - expected where it is read, 0 elsewhere, in float32; present for suspect operators only."""


IsSuspect = Callable[[int, Introduced], bool]
"""Decides whether an operator's error is large enough to find out which of its elements are used."""


def replay(kernels: Kernels, captured: Mapping[int, CapturedValue], is_suspect: IsSuspect) -> dict[int, Introduced]:
    """What each captured operator introduced. Left out is what cannot be made again: `kernels.refusals` says why."""
    values: dict[int, Value] = {}
    hidden: dict[int, tuple[int, ...]] = {}
    found: dict[int, Introduced] = {}
    for index, sources in enumerate(kernels.sources):
        made = kernels.call(index, values)
        behind = tuple(dict.fromkeys(each for source in sources for each in hidden.get(source, ())))
        shown = captured.get(index)
        if shown is None:
            if made is not None:
                values[index] = made
            adds_nothing = index in kernels.constants or index in kernels.data_movement_ops
            hidden[index] = behind if adds_nothing else (*behind, index)
            continue
        if index in kernels.getitem_index:  # it shows the tuple that it takes from
            behind = tuple(each for each in behind if each not in sources)
        actual = shown.dequantized()
        values[index] = actual.astype(np.float32) if actual.dtype == np.float64 else actual
        if isinstance(made, np.ndarray) and made.shape == actual.shape:
            found[index] = _introduced(_Difference.between(actual, made, shown), behind)
            values[index] = actual.astype(made.dtype)
    element_use = ElementUse(kernels, captured, values)
    for index in [index for index, each in found.items() if is_suspect(index, each)]:
        fused = _fused(index, found[index], kernels, captured, values)
        if fused is not None and not is_suspect(index, fused):
            found[index] = fused
            continue
        made = kernels.call(index, values)
        assert isinstance(made, np.ndarray), "it was made before"
        difference = _Difference.between(captured[index].dequantized(), made, captured[index])
        used_mask, masking_readers = element_use.used_mask(index, difference.actual, difference.expected)
        found[index] = _discounted(found[index], difference, used_mask, masking_readers)
    return found


def _fused(
    index: int, found: Introduced, kernels: Kernels, captured: Mapping[int, CapturedValue], values: Mapping[int, Value]
) -> Introduced | None:
    """The same operator on what the ones before it made, before it was put on their grids.

    A compiler that folds an operator into the one before never rounds what passes between them, though a debug program
    shows it rounded. None where there is no such operator before.
    """
    unrounded: dict[int, Value] = {}
    for source in kernels.sources[index]:
        if source in captured and captured[source].qparams is not None:
            made = kernels.call(source, values)
            if isinstance(made, np.ndarray):
                unrounded[source] = made
    made = kernels.call(index, ChainMap(unrounded, dict(values))) if unrounded else None
    if not isinstance(made, np.ndarray):
        return None
    difference = _Difference.between(captured[index].dequantized(), made, captured[index])
    return _introduced(difference, tuple(dict.fromkeys((*found.spans, *unrounded))))


def effect_db(kernels: Kernels, index: int, error: Array, reference: Mapping[int, Value]) -> float | None:
    """SNR, in dB, of the reference's final outputs with this operator's error alone added, against those without.

    `reference`: every operator's value in the reference's own run. None when the outputs stay exactly as they are.
    """
    clean = reference[index]
    assert isinstance(clean, np.ndarray), "an operator with an error of its own is a tensor"
    changed: dict[int, Value] = {index: (clean + error).astype(clean.dtype)}
    values = ChainMap(changed, dict(reference))
    for later in range(index + 1, len(kernels.sources)):
        if any(source in changed for source in kernels.sources[later]):
            made = kernels.call(later, values)
            if made is None:
                return None
            changed[later] = made
    pairs = list(zip(kernels.answer(values), kernels.answer(reference), strict=True))
    ratios = [snr_db(*pair) for pair in pairs if np.isfinite(pair).all()]
    return min((each for each in ratios if each is not None), default=None)


@dataclass(frozen=True, slots=True)
class _Difference:
    """What the device has, what it should have as one it can have, and its error in steps of its grid."""

    actual: Array
    expected: Array
    steps: Array | None

    @classmethod
    def between(cls, actual: Array, made: Array, shown: CapturedValue) -> _Difference:
        if shown.qparams is not None:
            expected = quantize(made, shown.qparams)
            return cls(actual, dequantize(expected, shown.qparams), shown.elements - expected)
        if actual.dtype.kind != "f":
            return cls(actual, made, actual.astype(np.float64) - made.astype(np.float64))
        return cls(actual, made, None)

    def where(self, chosen: Array) -> _Difference:
        return _Difference(
            self.actual[chosen], self.expected[chosen], None if self.steps is None else self.steps[chosen]
        )


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


def _discounted(
    found: Introduced, difference: _Difference, used_mask: Array, masking_readers: tuple[int, ...]
) -> Introduced:
    """The same without the elements that nobody reads."""
    unread = ~used_mask & (difference.actual != difference.expected)
    with np.errstate(invalid="ignore"):  # infinity less infinity
        error = np.where(used_mask, difference.actual.astype(np.float64) - difference.expected, 0.0).astype(np.float32)
    if not unread.any():
        return replace(found, error=error)
    read = _introduced(difference.where(used_mask), found.spans)
    return replace(read, masked=int(unread.sum()), masked_by=masking_readers, used_mask=used_mask, error=error)
