"""Who reads which elements of an operator's value: found by asking the readers, not by knowing their names.

An element that a reader's answer does not depend on, here and now, is not read: what a clamp cuts off, what a maximum
passes over, what is multiplied by zero. A compiler need not compute it.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tasks.numerics.dequantize import dequantize
from tasks.records import Quantization

Array = NDArray[Any]
Value = Array | tuple[Array, ...]

_UNREAD = 1e-6
"""An element whose derivative is below this share of the largest is not read: that is rounding, not use."""
_SAME = 1e-6
"""Two answers of one reader that differ by less than this share of the larger are the same answer."""


class Kernels(Protocol):
    """The reference's operators on one sample's inputs; `tasks.toolchain.reference.kernels.HostKernels` implements it.

    `sources`: per operator, the operators whose values it reads.
    `outputs`: the operators whose values are the program's final outputs.
    `constants`: the operators that depend on parameters alone.
    `data_movement_ops`: the operators that only move elements. An element is used through them if their readers use it.
    `getitem_index`: per getitem operator, the position that it takes from its tuple.
    `refusals`: per operator that the host cannot compute, the reason.
    """

    @property
    def sources(self) -> Sequence[Sequence[int]]: ...
    @property
    def outputs(self) -> frozenset[int]: ...
    @property
    def constants(self) -> frozenset[int]: ...
    @property
    def data_movement_ops(self) -> frozenset[int]: ...
    @property
    def getitem_index(self) -> Mapping[int, int]: ...
    @property
    def refusals(self) -> Mapping[int, str]: ...

    def call(self, index: int, values: Mapping[int, Value]) -> Value | None:
        """Compute one operator from the values of the others. None, and an entry in `refusals`, if it cannot be."""
        ...

    def gradient(
        self, index: int, source: int, values: Mapping[int, Value], weights: Sequence[Array | None]
    ) -> Array | None:
        """Return |d(sum of the weighted outputs of `index`) / d(element)| for every element of `source`.

        `weights`: one array per output of the operator. None without a derivative.
        """
        ...

    def answer(self, values: Mapping[int, Value]) -> list[Array]:
        """Return the program's final outputs, given the values of all operators."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class CapturedValue:
    """One operator's value on the device, in PyTorch's layout. `qparams`: None if the elements are not quantized."""

    elements: Array
    qparams: Quantization | None

    def dequantized(self) -> Array:
        return self.elements if self.qparams is None else dequantize(self.elements, self.qparams)


class ElementUse:
    """Who reads which elements of an operator's value, found by asking the readers themselves."""

    def __init__(self, kernels: Kernels, captured: Mapping[int, CapturedValue], values: dict[int, Value]) -> None:
        self._kernels = kernels
        self._captured = captured
        self._values = values
        self._of: dict[int, list[int]] = {}
        for reader, sources in enumerate(kernels.sources):
            for source in sources:
                self._of.setdefault(source, []).append(reader)

    def used_mask(self, index: int, actual: Array, expected: Array) -> tuple[Array, tuple[int, ...]]:
        """Which elements are read where the device has `actual` and should have `expected`; and who discards some."""
        if index in self._kernels.outputs:
            return np.ones(actual.shape, np.bool_), ()
        seen = np.zeros(actual.shape, np.bool_)
        masking_readers: list[int] = []
        for reader in self._of.get(index, ()):
            read = self._read(reader, index, actual, expected)
            seen |= read
            if not read.all():
                masking_readers.append(reader)
        return seen, tuple(masking_readers)

    def _read(self, reader: int, source: int, actual: Array, expected: Array) -> Array:
        everything = np.ones(actual.shape, np.bool_)
        wrong, right = self._made(reader, source, actual), self._made(reader, source, expected)
        if wrong is None or right is None:
            return everything
        weights = self._weights(reader, wrong, right)
        slopes = [self._kernels.gradient(reader, source, self._with(source, at), weights) for at in (actual, expected)]
        read = np.zeros(actual.shape, np.bool_)
        peak = max((float(slope.max(initial=0.0)) for slope in slopes if slope is not None), default=0.0)
        for slope in slopes:
            if slope is None:
                return everything
            read |= ~(slope <= _UNREAD * peak)  # a NaN is read
        # A slope says nothing of what lies between: with what is read mended, the reader's answer must be right.
        mended = self._made(reader, source, np.where(read, expected, actual))
        differing = self._differing(reader, mended, right, weights)
        if differing.shape == read.shape:
            read |= differing
            mended = self._made(reader, source, np.where(read, expected, actual))
            differing = self._differing(reader, mended, right, weights)
        return everything if differing.any() else read

    def _made(self, reader: int, source: int, value: Array) -> Value | None:
        return self._kernels.call(reader, self._with(source, value))

    def _with(self, source: int, value: Array) -> Mapping[int, Value]:
        like = self._values.get(source)
        dtype = like.dtype if isinstance(like, np.ndarray) else value.dtype
        return ChainMap({source: np.asarray(value, dtype, order="C")}, self._values)

    def _weights(self, reader: int, wrong: Value, right: Value) -> list[Array | None]:
        """For each output of the reader, how much each element counts: anything where it is read, 0 where it is not."""
        if isinstance(right, np.ndarray) or isinstance(wrong, np.ndarray):
            assert isinstance(right, np.ndarray), "the same call"
            assert isinstance(wrong, np.ndarray), "the same call"
            seen = self._seen(reader, wrong, right)
            # Not all alike: slopes that cancel in a plain sum must not look like no slope.
            return [seen * np.random.default_rng(0).uniform(0.5, 1.5, right.shape)]
        weights: list[Array | None] = [None] * len(right)
        for picker in self._of.get(reader, ()):
            position = self._kernels.getitem_index[picker]
            seen = self._seen(picker, wrong[position], right[position])
            weighted = seen * np.random.default_rng(0).uniform(0.5, 1.5, seen.shape)
            before = weights[position]
            weights[position] = weighted if before is None else np.maximum(before, weighted)
        return weights

    def _seen(self, reader: int, wrong: Array, right: Array) -> Array:
        if reader in self._kernels.data_movement_ops:
            return self.used_mask(reader, wrong, right)[0]
        return np.ones(right.shape, np.bool_)

    def _differing(self, reader: int, answer: Value | None, right: Value, weights: Sequence[Array | None]) -> Array:
        """Where two answers of a reader are not the same, over what counts of them."""
        if answer is None:
            return np.ones(1, np.bool_)
        if isinstance(answer, np.ndarray) and isinstance(right, np.ndarray):
            shown = self._captured.get(reader)
            return _apart(answer, right, shown.qparams if shown else None) & (weights[0] != 0)
        pairs = zip(answer, right, weights, strict=True)
        return np.array([bool(_apart(a, r, None)[w != 0].any()) for a, r, w in pairs if w is not None])


def _apart(answer: Array, right: Array, qparams: Quantization | None) -> Array:
    """Elements that the device's grid, or a float's precision, would tell apart."""
    if right.dtype.kind != "f":
        return answer != right
    largest = float(np.abs(right[np.isfinite(right)]).max(initial=0.0))
    least = _SAME * largest if qparams is None else min(qparams.scale) / 2
    with np.errstate(invalid="ignore"):
        return ~((np.abs(answer - right) <= least) | (answer == right) | (np.isnan(answer) & np.isnan(right)))
