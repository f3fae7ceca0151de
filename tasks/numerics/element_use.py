"""The used elements of an operator's value, determined from the results of the operators that read it (its readers).

No list of operator types is needed. An element is unused on a sample if no reader's result depends on the element: for
example, a clamp cuts the element off, the element is not the maximum, or it is multiplied by zero. A compiler need not
compute unused elements.
"""

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

_UNUSED = 1e-6  # a derivative up to this share of the largest one is rounding: its element is unused
_SAME = 1e-6  # a difference up to this share of the largest element is rounding: the results agree


class Kernels(Protocol):
    """The reference's operators, computed on one sample's inputs. `tasks.toolchain.reference.kernels` implements them.

    `sources`: per operator, the operators whose values it reads.
    `outputs`: the operators whose values are the program's final outputs.
    `constants`: the operators that depend only on parameters.
    `clamped`: the operators that only clamps read. The compiler rounds only the clamp's result.
    `data_movement_ops`: the operators that only move elements. They use the elements that their own readers use.
    `getitem_index`: per getitem operator, the position of its value in the tuple that it reads.
    `refusals`: per operator that the host cannot compute, the reason.
    """

    @property
    def sources(self) -> Sequence[Sequence[int]]: ...
    @property
    def outputs(self) -> frozenset[int]: ...
    @property
    def constants(self) -> frozenset[int]: ...
    @property
    def clamped(self) -> frozenset[int]: ...
    @property
    def data_movement_ops(self) -> frozenset[int]: ...
    @property
    def getitem_index(self) -> Mapping[int, int]: ...
    @property
    def refusals(self) -> Mapping[int, str]: ...

    def call(self, index: int, values: Mapping[int, Value]) -> Value | None:
        """Compute an operator from its sources' values. If this fails, return None and add the reason to `refusals`."""
        ...

    def gradient(
        self, index: int, source: int, values: Mapping[int, Value], weights: Sequence[Array | None]
    ) -> Array | None:
        """Return |d(sum of the weighted outputs of `index`) / d(element)| for every element of `source`.

        `weights`: one array per output of operator `index`. The result is None if there is no derivative.
        """
        ...

    def answer(self, values: Mapping[int, Value]) -> list[Array]:
        """Return the program's final outputs, given the values of all operators."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class CapturedValue:
    """One operator's value on the device, in PyTorch's layout."""

    elements: Array
    qparams: Quantization | None  # None if the elements are not quantized

    def dequantized(self) -> Array:
        """Return the values in floating point, or `elements` unchanged if they are not quantized."""
        return self.elements if self.qparams is None else dequantize(self.elements, self.qparams)


class ElementUse:
    """A search for the used elements of operators' values, on one sample.

    `captured`: the values on the device. `values`: the values from which readers are computed. The keys of both are
    operator indices.
    """

    def __init__(self, kernels: Kernels, captured: Mapping[int, CapturedValue], values: dict[int, Value]) -> None:
        self._kernels = kernels
        self._captured = captured
        self._values = values
        self._readers: dict[int, list[int]] = {}
        for reader, sources in enumerate(kernels.sources):
            for source in sources:
                self._readers.setdefault(source, []).append(reader)

    def used_mask(self, index: int, actual: Array, expected: Array) -> tuple[Array, tuple[int, ...]]:
        """Return which elements of operator `index` are used, and the readers that do not use all of them.

        `actual`: the operator's value on the device. `expected`: the right value. The mask has the shape of both.
        """
        if index in self._kernels.outputs:
            return np.ones(actual.shape, np.bool_), ()
        used = np.zeros(actual.shape, np.bool_)
        masking_readers: list[int] = []
        for reader in self._readers.get(index, ()):
            used_by_reader = self._used_by(reader, index, actual, expected)
            used |= used_by_reader
            if not used_by_reader.all():
                masking_readers.append(reader)
        return used, tuple(masking_readers)

    def _used_by(self, reader: int, source: int, actual: Array, expected: Array) -> Array:
        everything = np.ones(actual.shape, np.bool_)
        wrong, right = self._result(reader, source, actual), self._result(reader, source, expected)
        if wrong is None or right is None:
            return everything
        weights = self._weights(reader, wrong, right)
        slopes = [
            self._kernels.gradient(reader, source, self._with(source, value), weights) for value in (actual, expected)
        ]
        used = np.zeros(actual.shape, np.bool_)
        peak = max((float(slope.max(initial=0.0)) for slope in slopes if slope is not None), default=0.0)
        for slope in slopes:
            if slope is None:
                return everything
            used |= ~(slope <= _UNUSED * peak)  # an element whose derivative is NaN counts as used
        # The derivatives at the two values say nothing about the values between them. Check that the reader's result
        # is right once the used elements are corrected.
        corrected = self._result(reader, source, np.where(used, expected, actual))
        differing = self._differing(reader, corrected, right, weights)
        if differing.shape == used.shape:
            used |= differing
            corrected = self._result(reader, source, np.where(used, expected, actual))
            differing = self._differing(reader, corrected, right, weights)
        return everything if differing.any() else used

    def _result(self, reader: int, source: int, value: Array) -> Value | None:
        return self._kernels.call(reader, self._with(source, value))

    def _with(self, source: int, value: Array) -> Mapping[int, Value]:
        like = self._values.get(source)
        dtype = like.dtype if isinstance(like, np.ndarray) else value.dtype
        return ChainMap({source: np.asarray(value, dtype, order="C")}, self._values)

    def _weights(self, reader: int, wrong: Value, right: Value) -> list[Array | None]:
        """Return one array per output of the reader: the elements' weights, 0 if unused and otherwise 0.5 to 1.5."""
        if isinstance(right, np.ndarray) or isinstance(wrong, np.ndarray):
            assert isinstance(right, np.ndarray), "the same call"
            assert isinstance(wrong, np.ndarray), "the same call"
            used = self._used_output(reader, wrong, right)
            # In a plain sum, derivatives can cancel, as if the element were unused. Different weights prevent this.
            return [used * np.random.default_rng(0).uniform(0.5, 1.5, right.shape)]
        weights: list[Array | None] = [None] * len(right)
        for getitem in self._readers.get(reader, ()):
            position = self._kernels.getitem_index[getitem]
            used = self._used_output(getitem, wrong[position], right[position])
            weighted = used * np.random.default_rng(0).uniform(0.5, 1.5, used.shape)
            before = weights[position]
            weights[position] = weighted if before is None else np.maximum(before, weighted)
        return weights

    def _used_output(self, reader: int, wrong: Array, right: Array) -> Array:
        if reader in self._kernels.data_movement_ops:
            return self.used_mask(reader, wrong, right)[0]
        return np.ones(right.shape, np.bool_)

    def _differing(self, reader: int, result: Value | None, right: Value, weights: Sequence[Array | None]) -> Array:
        """Return which elements of nonzero weight differ between two results or, for tuples, which outputs differ."""
        if result is None:
            return np.ones(1, np.bool_)
        if isinstance(result, np.ndarray) and isinstance(right, np.ndarray):
            captured = self._captured.get(reader)
            return _differ(result, right, captured.qparams if captured else None) & (weights[0] != 0)
        outputs = zip(result, right, weights, strict=True)
        return np.array([bool(_differ(a, r, None)[w != 0].any()) for a, r, w in outputs if w is not None])


def _differ(result: Array, right: Array, qparams: Quantization | None) -> Array:
    """Return which elements differ by more than rounding explains. On a grid, rounding explains up to half a step."""
    if right.dtype.kind != "f":
        return result != right
    largest = float(np.abs(right[np.isfinite(right)]).max(initial=0.0))
    least = _SAME * largest if qparams is None else min(qparams.scale) / 2
    with np.errstate(invalid="ignore"):
        return ~((np.abs(result - right) <= least) | (result == right) | (np.isnan(result) & np.isnan(right)))
