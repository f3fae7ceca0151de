"""Operators in NumPy with their derivatives in closed form, and programs of them.

`Program` implements `qnnsweep.tasks.numerics.element_use.Kernels` without any code for masks, verdicts or budgets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qnnsweep.tasks.numerics.element_use import Array, NoDerivative, Value, Weights

from tests.numerics.numpy_between import RunBetween  # isort: skip

Pullback = Callable[..., list[Array | None]]
"""Maps the weights of the outputs (None: unused) and the inputs to the derivative of the weighted sum per input."""
Selection = Callable[[Array, Array], Array]
"""Returns the elements that indices, the second argument, select from the value that an operator reads."""


@dataclass(frozen=True, kw_only=True)
class Op:
    """An operator. Without a `pullback` it has no derivative, as with integers.

    `selection`: for an operator whose value, or whose second output, is indices into the value that it reads.
    `on_exact_inputs`: for an operator that reads an input of the model, what it computes before the input is rounded.
    """

    reads: tuple[int, ...]
    forward: Callable[..., Value]
    pullback: Pullback | None = None
    moves: bool = False
    linear: bool = False
    clamps: bool = False
    getitem_index: int | None = None
    constant: bool = False
    selection: Selection | None = None
    unsupported: str | None = None
    on_exact_inputs: Callable[..., Value] | None = None


@dataclass
class Program:
    """The operators in their order, and the indices of those whose values are the final outputs."""

    ops: list[Op] = field(default_factory=list)
    output_ops: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.refusals: dict[int, str] = {}

    def add(self, op: Op) -> int:
        self.ops.append(op)
        return len(self.ops) - 1

    @property
    def sources(self) -> Sequence[Sequence[int]]:
        return [tuple(dict.fromkeys(op.reads)) for op in self.ops]

    @property
    def outputs(self) -> frozenset[int]:
        return frozenset(self.output_ops)

    @property
    def constants(self) -> frozenset[int]:
        return frozenset(index for index, op in enumerate(self.ops) if op.constant)

    @property
    def clamped(self) -> frozenset[int]:
        read = {source for op in self.ops for source in op.reads}
        return frozenset(read.difference(self.output_ops, *(op.reads for op in self.ops if not op.clamps)))

    @property
    def data_movement_ops(self) -> frozenset[int]:
        return frozenset(index for index, op in enumerate(self.ops) if op.moves)

    @property
    def linear(self) -> frozenset[int]:
        return frozenset(index for index, op in enumerate(self.ops) if op.linear)

    @property
    def getitem_index(self) -> Mapping[int, int]:
        return {index: op.getitem_index for index, op in enumerate(self.ops) if op.getitem_index is not None}

    def call(self, index: int, values: Mapping[int, Value]) -> Value | None:
        op = self.ops[index]
        if op.unsupported is not None:
            self.refusals[index] = op.unsupported
            return None
        values = {**self._constants(op.reads, values), **values}
        missing = [source for source in op.reads if source not in values]
        if missing:
            self.refusals[index] = f"reads operator {missing[0]}, which has no value"
            return None
        value = op.forward(*(values[source] for source in op.reads))
        return value if isinstance(value, tuple) else np.asarray(value)

    def call_on_exact_inputs(self, index: int, values: Mapping[int, Value]) -> Value | None:
        forward = self.ops[index].on_exact_inputs
        return None if forward is None else forward(*(values[source] for source in self.ops[index].reads))

    def _constants(self, indices: Sequence[int], values: Mapping[int, Value]) -> dict[int, Value]:
        """Return the values of constants that `values` does not have."""
        constants = [index for index in indices if self.ops[index].constant and index not in values]
        return {index: value for index in constants if (value := self.call(index, values)) is not None}

    def gradient(self, index: int, source: int, values: Mapping[int, Value], weights: Weights) -> Array | None:
        value = self.call(index, values)
        if self.ops[index].pullback is None or value is None:
            return None
        slopes = self.slopes(index, values, weights(value if isinstance(value, tuple) else (value,)))
        return np.abs(slopes[source]) if source in slopes else None

    def slopes(self, index: int, values: Mapping[int, Value], weights: Sequence[Array | None]) -> dict[int, Array]:
        """Return, by source, the signed derivative of the weighted outputs of an operator that has a `pullback`."""
        op, total = self.ops[index], dict[int, Array]()
        assert op.pullback is not None
        values = {**self._constants(op.reads, values), **values}
        slopes = op.pullback(weights, *(values[read] for read in op.reads))
        for read, slope in zip(op.reads, slopes, strict=True):
            if slope is not None:
                total[read] = total[read] + slope if read in total else slope
        return total

    def picked(self, index: int, indices: Array, values: Mapping[int, Value]) -> Array | None:
        op = self.ops[index]
        if op.getitem_index == 1:
            op = self.ops[op.reads[0]]
        if op.selection is None or not isinstance(value := values.get(op.reads[0]), np.ndarray):
            return None
        try:
            return op.selection(value, indices)
        except IndexError:
            return None

    def changed_constants(self, errors: Mapping[int, Array]) -> dict[int, Value]:
        changed: dict[int, Value] = {}
        for index in sorted(self.constants):
            value = self.call(index, changed)
            if index in errors and isinstance(value, np.ndarray):
                changed[index] = value - errors[index]
            elif any(source in changed for source in self.ops[index].reads) and value is not None:
                changed[index] = value
        return changed

    def between(
        self, inputs: Sequence[Array], constants: Mapping[int, Value], errors: Mapping[int, Array], fraction: float
    ) -> RunBetween:
        """Run the program with a fraction of every error added. The n-th input is the value of the n-th `entry`."""
        entries = [index for index, op in enumerate(self.ops) if not op.reads and not op.constant]
        values: dict[int, Value] = dict(constants)
        for index in range(len(self.ops)):
            if index in constants:
                continue
            value = self.call(index, values)
            if index in entries:
                position = entries.index(index)
                value = inputs[position] + fraction * errors.get(-1 - position, np.float32(0))
            if value is None:
                raise NoDerivative(self.refusals[index])
            if index in errors and isinstance(value, np.ndarray):
                value = value + fraction * errors[index]
            values[index] = value
        return RunBetween(self, values, {entry: -1 - position for position, entry in enumerate(entries)}, {*errors})

    def answer(self, values: Mapping[int, Value]) -> list[Array]:
        return [np.asarray(values[index]) for index in self.output_ops]

    def fits(self) -> bool:
        """Return whether the shapes and types of the operators fit together, as in every exported program."""
        try:
            self.run()
        except (ValueError, IndexError, TypeError):
            return False
        return True

    def run(self) -> dict[int, Value]:
        """Return the value of every operator in the program's own run."""
        values: dict[int, Value] = {}
        for index in range(len(self.ops)):
            value = self.call(index, values)
            if value is not None:
                values[index] = value
        return values


def line(*ops: Op) -> Program:
    """Return a program whose last operator is its final output."""
    return Program(list(ops), [len(ops) - 1])


def entry(value: Any) -> Op:
    """Return the graph's input, as an operator without sources whose value is `value`."""
    return Op(reads=(), forward=lambda: np.asarray(value))


def constant(value: Any) -> Op:
    return Op(reads=(), forward=lambda: np.asarray(value), constant=True)


def scaled(source: int, by: float) -> Op:
    factor = np.float32(by)
    return Op(reads=(source,), forward=lambda x: x * factor, pullback=lambda w, x: [w[0] * factor])


def matmul(source: int, weight: Array) -> Op:
    return Op(reads=(source,), forward=lambda x: x @ weight, pullback=lambda w, x: [w[0] @ weight.T], linear=True)


def added(a: int, b: int) -> Op:
    return Op(
        reads=(a, b),
        forward=lambda x, y: x + y,
        pullback=lambda w, x, y: [_summed(w[0], x), _summed(w[0], y)],
        linear=a != b,
    )


def multiplied(a: int, b: int) -> Op:
    return Op(
        reads=(a, b),
        forward=lambda x, y: x * y,
        pullback=lambda w, x, y: [_summed(w[0] * y, x), _summed(w[0] * x, y)],
        linear=a != b,
    )


def _summed(slope: Array, like: Array) -> Array:
    """Return the sum over the axes along which `like` was repeated."""
    slope = slope.sum(tuple(range(slope.ndim - like.ndim)))
    repeated = tuple(axis for axis, size in enumerate(like.shape) if size == 1 != slope.shape[axis])
    return slope.sum(repeated, keepdims=True)


def relu(source: int) -> Op:
    return Op(
        reads=(source,), forward=lambda x: np.maximum(x, 0), pullback=lambda w, x: [w[0] * (x > 0)], clamps=True
    )  # fmt: skip


def relu6(source: int) -> Op:
    return Op(
        reads=(source,),
        forward=lambda x: np.clip(x, 0, 6),
        pullback=lambda w, x: [w[0] * ((x > 0) & (x < 6))],
        clamps=True,
    )  # fmt: skip


def sign(source: int) -> Op:
    """Return the sign, whose derivative is zero wherever it is defined."""
    return Op(reads=(source,), forward=np.sign, pullback=lambda w, x: [np.zeros_like(x)])


def softmax(source: int) -> Op:
    def forward(x: Array) -> Array:
        raised = np.exp(x - x.max(-1, keepdims=True))
        return raised / raised.sum(-1, keepdims=True)

    def pullback(w: Sequence[Array], x: Array) -> list[Array | None]:
        y = forward(x)
        return [y * (w[0] - (w[0] * y).sum(-1, keepdims=True))]

    return Op(reads=(source,), forward=forward, pullback=pullback)


def mean(source: int) -> Op:
    """Return the mean over the last axis."""
    return Op(
        reads=(source,),
        forward=lambda x: x.mean(-1, dtype=x.dtype),
        pullback=lambda w, x: [np.repeat(w[0][..., None] / x.shape[-1], x.shape[-1], -1)],
    )


def max_pool(source: int) -> Op:
    """Return the tuple of the larger element of each pair along the last axis and its index."""

    def forward(x: Array) -> Value:
        pairs = x.reshape(*x.shape[:-1], -1, 2)
        return pairs.max(-1), pairs.argmax(-1)

    def pullback(w: Sequence[Array | None], x: Array) -> list[Array | None]:
        pairs = x.reshape(*x.shape[:-1], -1, 2)
        slope = np.zeros_like(pairs)
        weight = w[0]
        if weight is None:
            return [None]
        np.put_along_axis(slope, pairs.argmax(-1)[..., None], weight[..., None].astype(x.dtype), -1)
        return [slope.reshape(x.shape)]

    def selection(x: Array, indices: Array) -> Array:
        return np.take_along_axis(x.reshape(*x.shape[:-1], -1, 2), indices[..., None], -1)[..., 0]

    return Op(reads=(source,), forward=forward, pullback=pullback, selection=selection)


def topk(source: int, k: int) -> Op:
    """Return the tuple of the k largest elements along the last axis and their positions."""

    def order(x: Array) -> Array:
        return np.argsort(-x, -1, kind="stable")[..., :k]

    def forward(x: Array) -> Value:
        return np.take_along_axis(x, order(x), -1), order(x)

    def pullback(w: Sequence[Array | None], x: Array) -> list[Array | None]:
        weight = w[0]
        if weight is None:
            return [None]
        slope = np.zeros_like(x)
        np.put_along_axis(slope, order(x), weight.astype(x.dtype), -1)
        return [slope]

    def selection(x: Array, indices: Array) -> Array:
        return np.take_along_axis(x, indices, -1)

    return Op(reads=(source,), forward=forward, pullback=pullback, selection=selection)


def argmax(source: int) -> Op:
    """Return the position of the largest element along the last axis."""
    return Op(
        reads=(source,),
        forward=lambda x: x.argmax(-1),
        selection=lambda x, indices: np.take_along_axis(x, indices[..., None], -1)[..., 0],
    )


def split(source: int) -> Op:
    """Return the tuple of the two halves of the last axis."""

    def pullback(w: Sequence[Array | None], x: Array) -> list[Array | None]:
        half = x.shape[-1] // 2
        slope = np.zeros_like(x)
        for weight, part in zip(w, (slope[..., :half], slope[..., half:]), strict=True):
            if weight is not None:
                part[...] = weight
        return [slope]

    return Op(reads=(source,), forward=lambda x: tuple(np.split(x, 2, -1)), pullback=pullback, moves=True)


def getitem(source: int, position: int) -> Op:
    return Op(reads=(source,), forward=lambda parts: parts[position], moves=True, getitem_index=position)


def sliced(source: int, start: int, stop: int) -> Op:
    """Return a slice of the last axis."""

    def pullback(w: Sequence[Array], x: Array) -> list[Array | None]:
        slope = np.zeros_like(x)
        slope[..., start:stop] = w[0]
        return [slope]

    return Op(reads=(source,), forward=lambda x: x[..., start:stop], pullback=pullback, moves=True)


def transposed(source: int) -> Op:
    return Op(reads=(source,), forward=lambda x: x.T, pullback=lambda w, x: [w[0].T], moves=True)


def viewed(source: int) -> Op:
    """Return the elements as a tensor with one axis."""
    return Op(
        reads=(source,), forward=lambda x: x.reshape(-1), pullback=lambda w, x: [w[0].reshape(x.shape)], moves=True
    )


def above(source: int, threshold: float) -> Op:
    return Op(reads=(source,), forward=lambda x: x > threshold)


def chosen(condition: int, a: int, b: int) -> Op:
    """Return `np.where`, whose condition has no derivative."""
    return Op(
        reads=(condition, a, b),
        forward=lambda c, x, y: np.where(c, x, y),
        pullback=lambda w, c, x, y: [None, w[0] * c, w[0] * ~c],
    )


def gathered(source: int, positions: int) -> Op:
    """Return the elements of the last axis at some positions, which have no derivative."""

    def pullback(w: Sequence[Array], x: Array, at: Array) -> list[Array | None]:
        slope = np.zeros_like(x)
        for index in np.ndindex(at.shape):
            slope[(*index[:-1], at[index])] += w[0][index]
        return [slope, None]

    return Op(reads=(source, positions), forward=lambda x, at: np.take_along_axis(x, at, -1), pullback=pullback)


def refused(source: int, why: str) -> Op:
    return Op(reads=(source,), forward=lambda x: x, unsupported=why)
