"""The used elements of an operator's value, determined from the results of the operators that read it (its readers).

No list of operator types is needed. An element is unused on a sample if no reader's result depends on the element: for
example, a clamp cuts the element off, the element is not the maximum, or it is multiplied by zero. A compiler need not
compute unused elements.
"""

import math
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from qnnsweep.tasks.numerics.blocks import Array, block_of
from qnnsweep.tasks.numerics.dequantize import dequantize, dequantize_block
from qnnsweep.tasks.numerics.element_change import (
    CHANGE,
    ValuePair,
    differ,
    largest_rounding,
    output_weights,
    roundings,
)
from qnnsweep.tasks.records import Quantization

Value = Array | tuple[Array, ...]
Weights = Callable[[Sequence[Array]], Sequence[Array | None]]
"""Returns the weights of an operator's outputs, None for an output that has no weight."""

_UNUSED = 1e-3  # an element is unused if it changes no result by more than this share of the result's rounding
_MOSTLY = 0.999  # derivatives that are exactly zero for more elements than the rest are no chance


class Kernels(Protocol):
    """The reference's operators, computed on one sample's inputs. See `qnnsweep.tasks.toolchain.reference.kernels`.

    `sources`: per operator, the operators whose values it reads.
    `outputs`: the operators whose values are the program's final outputs.
    `results`: per final output, the operator that returns it; None if it is no operator.
    `constants`: the operators that depend only on parameters.
    `clamped`: the operators that only clamps read. The compiler rounds only the clamp's result.
    `data_movement_ops`: the operators that only move elements. They use the elements that their own readers use.
    `linear`: operators whose result is linear in every source, for example convolutions.
    `getitem_index`: per getitem operator, the position of its value in the tuple that it reads.
    `refusals`: per operator that the host cannot compute, the reason.
    `halves`: the operators that read constants in float16.
    `misread_biases`: the biases beyond the range of their 32-bit grid, and those on the grid of another call.
    `quantizing`: the operators that round a value to a grid, because the graph itself does this, with the index of this
    value; the model's inputs have the indices -1, -2 and so on.
    """

    @property
    def sources(self) -> Sequence[Sequence[int]]: ...
    @property
    def outputs(self) -> frozenset[int]: ...
    @property
    def results(self) -> Sequence[int | None]: ...
    @property
    def constants(self) -> frozenset[int]: ...
    @property
    def clamped(self) -> frozenset[int]: ...
    @property
    def data_movement_ops(self) -> frozenset[int]: ...
    @property
    def linear(self) -> frozenset[int]: ...
    @property
    def getitem_index(self) -> Mapping[int, int]: ...
    @property
    def refusals(self) -> dict[int, str]: ...
    @property
    def halves(self) -> frozenset[int]: ...
    @property
    def misread_biases(self) -> frozenset[int]: ...
    @property
    def quantizing(self) -> Mapping[int, int]: ...

    def call(
        self,
        index: int,
        values: Mapping[int, Value],
        inputs: Sequence[Array] | None = None,
        *,
        exact_constants: bool = False,
    ) -> Value | None:
        """Compute an operator from its sources' values. If this fails, return None and add the reason to `refusals`.

        `inputs`: those of the model; None for the sample's. `exact_constants`: see `halves`.
        """
        ...

    def reads_halves(self, index: int) -> bool:
        """Return whether an operator reads constants that are rounded to float16."""
        ...

    def exact_constants(self) -> dict[int, Value]:
        """Return the values of the constants that are rounded to float16, before this rounding."""
        ...

    def answer(self, values: Mapping[int, Value], inputs: Sequence[Array] | None = None) -> list[Array]:
        """Return the final outputs. `values`: the values of the operators that are outputs."""
        ...

    def call_on_exact_inputs(self, index: int, values: Mapping[int, Value]) -> Value | None:
        """Compute an operator that reads an input of the model from this input before it is rounded to a grid.

        The other sources have their `values`. The result is None if the operator reads no input.
        """
        ...

    def gradient(self, index: int, source: int, values: Mapping[int, Value], weights: Weights) -> Array | None:
        """Return |d(sum of the weighted outputs of `index`) / d(element)| for every element of `source`.

        `weights`: returns one array per output of operator `index`, for the outputs. The result is None if there is no
        derivative.
        """
        ...

    def picked(self, index: int, indices: Array, values: Mapping[int, Value]) -> Array | None:
        """Return the elements that `indices` select from the value that operator `index` reads.

        Return None if the operator's own value is no indices into the value that it reads, or if `indices` do not fit.
        """
        ...

    def changed_constants(self, errors: Mapping[int, Array]) -> dict[int, Value]:
        """Return the values of constants without their errors, and of all constants that depend on them."""
        ...

    def between(
        self, inputs: Sequence[Array], constants: Mapping[int, Value], errors: Mapping[int, Array], fraction: float
    ) -> "Sensitivity":
        """Return the program's run with a fraction of every error. Raises NoDerivative if there are no derivatives.

        `inputs`: the model's inputs, not rounded. `constants`: the constants whose values are not the program's own.
        `errors`: by operator index, the errors of values. The model's inputs have the indices -1, -2 and so on.
        `fraction`: 0 for the float model's run, 1 for the device's.
        """
        ...


class NoDerivative(Exception):
    """The derivatives of the final outputs cannot be computed. The message is the reason."""


class Sensitivity(Protocol):
    """The derivatives of the final outputs. `qnnsweep.tasks.toolchain.reference.between.RunBetween` implements it."""

    def gradients(self, output: int, direction: Array) -> Mapping[int, Array]:
        """Return, by the index of an error, d(<direction, output>) / d(value).

        Raises NoDerivative if an operator has no derivative, or cannot be computed.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class CapturedValue:
    """One operator's value on the device, in PyTorch's layout."""

    elements: Array
    qparams: Quantization | None  # None if the elements are not quantized
    inferred: bool = False  # whether no such value was logged: the host has rounded the logged value to this grid
    half: bool = False  # whether the device computed the elements in float16

    @property
    def shape(self) -> tuple[int, ...]:
        return self.elements.shape

    @property
    def size(self) -> int:
        return self.elements.size

    def dequantized(self, dtype: np.dtype[Any] | type[np.floating] = np.float64) -> Array:
        """Return the values in floating point, or `elements` unchanged if they are not quantized.

        `dtype`: the type of the values; a type that is not floating point stands for float64.
        """
        if self.qparams is None:
            return self.elements
        return dequantize(self.elements, self.qparams, dtype if np.issubdtype(dtype, np.floating) else np.float64)

    def block(self, part: slice) -> Array:
        """Return these elements of the flattened values, in float64."""
        if self.qparams is None:
            return block_of(self.elements, part)
        return dequantize_block(self.elements, self.qparams, part)


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
        # By reader, source and seed. The derivatives of a linear reader are the same for every value of the source.
        self._linear_slopes: dict[tuple[int, int, int], Array] = {}

    def used_mask(self, index: int, actual: Array, expected: Array) -> tuple[Array | None, tuple[int, ...]]:
        """Return which elements of operator `index` are used, and the readers that do not use all of them.

        `actual`: the operator's value on the device. `expected`: the right value. The mask has the shape of both, and
        is None if all elements are used.
        """
        pair = ValuePair(self._as_read(index, actual), self._as_read(index, expected), actual != expected)
        return self._union(index, actual.shape, lambda reader: self._used_by(reader, index, pair))

    def read_mask(self, index: int, value: Array) -> Array | None:
        """Return which elements of operator `index` some reader's result depends on, if the operator has this value."""
        same = self._as_read(index, value)
        pair = ValuePair(same, same, np.zeros(same.shape, np.bool_))
        return self._union(index, value.shape, lambda reader: self._read_by(reader, index, same, pair))[0]

    def _union(
        self, index: int, shape: tuple[int, ...], of_reader: Callable[[int], Array | None]
    ) -> tuple[Array | None, tuple[int, ...]]:
        if index in self._kernels.outputs:
            return None, ()
        masks = {reader: of_reader(reader) for reader in self._readers.get(index, ())}
        partial = {reader: mask for reader, mask in masks.items() if mask is not None}
        if len(partial) < len(masks):
            return None, tuple(partial)
        union = np.zeros(shape, np.bool_)
        for mask in partial.values():
            union |= mask
        return None if union.all() else union, tuple(partial)

    def _used_by(self, reader: int, source: int, pair: ValuePair) -> Array | None:
        used = self._read_by(reader, source, pair.actual, pair)
        # The derivatives at the device's value say nothing about other values. Check that the reader's result is right
        # once the used elements are corrected. If it is not, add what the reader reads of the right value, and then
        # the elements whose own result is wrong.
        for attempt in range(3):
            if used is None or not (~used & pair.differs).any():
                return used
            right = self._result(reader, source, pair.expected)
            corrected = self._result(reader, source, np.where(used, pair.expected, pair.actual))
            wrong = self._differing(reader, source, corrected, right, pair)
            if not wrong.any():
                return used
            also = self._read_by(reader, source, pair.expected, pair) if attempt == 0 else wrong
            if also is None or also.shape != used.shape or (used | also).all():
                return None
            used = used | also
        return None

    def _read_by(self, reader: int, source: int, value: Array, pair: ValuePair) -> Array | None:
        """Return which elements of operator `source` the reader's results depend on, if the operator has this value.

        An element is read if changing it changes some result by more than the rounding of float32 in that result.
        Return None if all elements are read.
        """
        masks = self._output_masks(reader, source, pair)
        if masks is None:
            return None
        largest: Array | None = None
        for seed in range(2):
            slope, rounding = self._usual_slope(reader, source, value, masks, seed)
            if slope is None:
                return None
            # If every element changes some result by more than the rounding of the largest result, all are read. By
            # chance, the weighted derivatives of an element can cancel once, but not twice.
            largest = slope if largest is None else np.maximum(largest, slope)
            if not slope.size or largest.min() * CHANGE * pair.usual > _UNUSED * rounding:
                return None
            read = _surely_read(largest, pair.least_change, _UNUSED * rounding)
            if read is None:
                read = _surely_read(largest, pair.change, _UNUSED * rounding)
            if read is not None:  # a smaller rounding changes nothing
                return None if read.all() else read.reshape(value.shape)
            if np.count_nonzero(slope) < _MOSTLY * slope.size:
                break
        slope, rounding = self._slope(reader, source, value, masks, roundings)
        assert slope is not None, "the same call"
        with np.errstate(invalid="ignore", over="ignore"):
            # An element whose derivative is NaN counts as read.
            read = ~(slope * pair.change <= _UNUSED * rounding)
        return None if read.all() else read

    def _usual_slope(
        self, reader: int, source: int, value: Array, masks: Sequence[Array | bool | None], seed: int
    ) -> tuple[Array | None, float]:
        """Return the derivative of the reader's results, and the rounding of the largest result; see `_slope`."""
        key = (reader, source, seed)
        if key in self._linear_slopes and masks == [True]:
            result = self._result(reader, source, value)
            assert isinstance(result, np.ndarray), "the same call"
            return self._linear_slopes[key], float(largest_rounding(result)[0])
        slope, rounding = self._slope(reader, source, value, masks, largest_rounding, seed)
        if slope is not None and reader in self._kernels.linear and masks == [True]:
            self._linear_slopes[key] = slope
        return slope, rounding

    def _slope(
        self,
        reader: int,
        source: int,
        value: Array,
        masks: Sequence[Array | bool | None],
        roundings_of: Callable[[Array], Array],
        seed: int = 0,
    ) -> tuple[Array | None, float]:
        """Return the derivative of the reader's results, each divided by its rounding, and the smallest rounding.

        The derivatives are multiplied by the smallest rounding, so that they fit float32.
        """
        least = math.inf

        def weights(outputs: Sequence[Array]) -> list[Array | None]:
            nonlocal least
            roundings = [
                None if mask is None or output.dtype.kind != "f" else roundings_of(output)
                for output, mask in zip(outputs, masks, strict=True)
            ]
            least = min(
                (float(rounding.min(initial=math.inf)) for rounding in roundings if rounding is not None), default=0.0
            )
            return [
                None if rounding is None or mask is None else output_weights(mask, least / rounding, output.shape, seed)
                for output, rounding, mask in zip(outputs, roundings, masks, strict=True)
            ]

        return self._kernels.gradient(reader, source, self._with(source, value), weights), least

    def _result(self, reader: int, source: int, value: Array) -> Value | None:
        return self._kernels.call(reader, self._with(source, value))

    def _as_read(self, index: int, value: Array) -> Array:
        """Return the value in the type in which readers receive it."""
        like = self._values.get(index)
        return np.asarray(value, like.dtype if isinstance(like, np.ndarray) else value.dtype, order="C")

    def _with(self, source: int, value: Array) -> Mapping[int, Value]:
        return ChainMap({source: value}, self._values)

    def _output_masks(self, reader: int, source: int, pair: ValuePair) -> list[Array | bool | None] | None:
        """Return, per output of the reader, which elements are used; None for an output that nothing reads.

        Return None if the reader cannot be computed. An operator that only moves elements uses the elements that its
        own readers use, and a tuple's outputs are used as their getitem operators are.
        """
        if reader not in pair.masks:
            pair.masks[reader] = self._masks_of_outputs(reader, source, pair)
        return pair.masks[reader]

    def _masks_of_outputs(self, reader: int, source: int, pair: ValuePair) -> list[Array | bool | None] | None:
        getitems = [other for other in self._readers.get(reader, ()) if other in self._kernels.getitem_index]
        if not getitems and reader not in self._kernels.data_movement_ops:
            return [True]
        wrong = self._result(reader, source, pair.actual)
        right = wrong if pair.actual is pair.expected else self._result(reader, source, pair.expected)
        if wrong is None or right is None:
            return None
        if isinstance(right, np.ndarray) or isinstance(wrong, np.ndarray):
            assert isinstance(right, np.ndarray), "the same call"
            assert isinstance(wrong, np.ndarray), "the same call"
            return [self._all_or(self.used_mask(reader, wrong, right)[0])]
        masks: list[Array | bool | None] = [None] * len(right)
        for getitem in getitems:
            position = self._kernels.getitem_index[getitem]
            mask = self._all_or(self.used_mask(getitem, wrong[position], right[position])[0])
            before = masks[position]
            masks[position] = mask if before is None else np.logical_or(mask, before)
        return masks

    @staticmethod
    def _all_or(mask: Array | None) -> Array | bool:
        return True if mask is None else mask

    def _differing(self, reader: int, source: int, result: Value | None, right: Value | None, pair: ValuePair) -> Array:
        """Return which used elements differ between two results or, for tuples, which outputs differ."""
        masks = self._output_masks(reader, source, pair)
        if result is None or right is None or masks is None:
            return np.ones(1, np.bool_)
        if isinstance(result, np.ndarray) and isinstance(right, np.ndarray):
            captured = self._captured.get(reader)
            return differ(result, right, captured.qparams if captured else None) & masks[0]
        outputs = zip(result, right, masks, strict=True)
        return np.array([bool((differ(a, r, None) & mask).any()) for a, r, mask in outputs if mask is not None])


def _surely_read(slope: Array, change: Array | float, least: float) -> Array | None:
    """Return which elements change a result by more than `least`; None if others change it at all.

    `slope`: the derivative of the result with respect to every element. `change`: by how much elements are changed.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        read = slope * change > least
    return read if (read | (slope == 0)).all() else None
