"""Operators in NumPy with their derivatives in closed form, and a device that computes them on integer grids.

`Program` is a reference as `tasks.numerics.element_use.Kernels` asks for one; nothing in it knows of masks or blame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.numerics.dequantize import quantize
from tasks.numerics.element_use import Array, CapturedValue, Value
from tasks.records import Quantization

Pullback = Callable[..., list[Array | None]]
"""Maps the weights of the outputs (None: unused) and the inputs to the derivative of the weighted sum per input."""


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operator. Without a `pullback` there is no derivative, as for integers."""

    reads: tuple[int, ...]
    forward: Callable[..., Value]
    pullback: Pullback | None = None
    moves: bool = False
    getitem_index: int | None = None
    constant: bool = False
    refusal: str | None = None


@dataclass
class Program:
    """Operators in order; `outputs` are those whose values leave."""

    ops: list[Op] = field(default_factory=list)
    leaving: list[int] = field(default_factory=list)

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
        return frozenset(self.leaving)

    @property
    def constants(self) -> frozenset[int]:
        return frozenset(index for index, op in enumerate(self.ops) if op.constant)

    @property
    def data_movement_ops(self) -> frozenset[int]:
        return frozenset(index for index, op in enumerate(self.ops) if op.moves)

    @property
    def getitem_index(self) -> Mapping[int, int]:
        return {index: op.getitem_index for index, op in enumerate(self.ops) if op.getitem_index is not None}

    def call(self, index: int, values: Mapping[int, Value]) -> Value | None:
        op = self.ops[index]
        if op.refusal is not None:
            self.refusals[index] = op.refusal
            return None
        missing = [source for source in op.reads if source not in values]
        if missing:
            self.refusals[index] = f"reads operator {missing[0]}, which has no value"
            return None
        made = op.forward(*(values[source] for source in op.reads))
        return made if isinstance(made, tuple) else np.asarray(made)

    def gradient(
        self, index: int, source: int, values: Mapping[int, Value], weights: Sequence[Array | None]
    ) -> Array | None:
        op = self.ops[index]
        if op.pullback is None:
            return None
        slopes = op.pullback(weights, *(values[read] for read in op.reads))
        total: Any = None
        for read, slope in zip(op.reads, slopes, strict=True):
            if read == source:
                if slope is None:
                    return None
                total = slope if total is None else total + slope
        return np.abs(total)

    def answer(self, values: Mapping[int, Value]) -> list[Array]:
        return [np.asarray(values[index]) for index in self.leaving]

    def fits(self) -> bool:
        """Return whether the shapes and types of the operators fit together, as in every exported program."""
        try:
            self.run()
        except (ValueError, IndexError, TypeError):
            return False
        return True

    def run(self) -> dict[int, Value]:
        """Every operator's value in the program's own run."""
        values: dict[int, Value] = {}
        for index in range(len(self.ops)):
            made = self.call(index, values)
            if made is not None:
                values[index] = made
        return values


Damage = Callable[[Array], Array]


@dataclass(frozen=True)
class Device:
    """A device that computes a program in order and rounds each captured operator's value to its grid."""

    qparams: Mapping[int, Quantization]
    hidden: frozenset[int] = frozenset()
    """Not logged, and not rounded."""

    def capture(self, program: Program, damages: Mapping[int, Damage] | None = None) -> dict[int, CapturedValue]:
        """Return the captured values. `damages` change logged elements, which are quantized if there are qparams."""
        values: dict[int, Value] = {}
        shown: dict[int, CapturedValue] = {}
        for index, op in enumerate(program.ops):
            value = op.forward(*(values[source] for source in op.reads))
            value = value if isinstance(value, tuple) else np.asarray(value)
            damage = (damages or {}).get(index, lambda elements: elements)
            if op.constant or index in self.hidden or isinstance(value, tuple):
                values[index] = value
                continue
            shown[index] = logged(value, self.qparams.get(index), damage)
            values[index] = shown[index].dequantized().astype(value.dtype)
        return shown


def logged(value: Array, qparams: Quantization | None, damage: Damage = lambda elements: elements) -> CapturedValue:
    if qparams is None:
        return CapturedValue(elements=np.asarray(damage(value)), qparams=None)
    quantized = np.asarray(quantize(value, qparams)).astype(np.int64)
    return CapturedValue(
        elements=np.asarray(np.clip(damage(quantized), qparams.quant_min, qparams.quant_max)), qparams=qparams
    )


def quantization(scale: float = 0.01, zero_point: int = 0, bits: int = 16) -> Quantization:
    half = 2 ** (bits - 1)
    return Quantization(
        scale=(scale,), zero_point=(zero_point,), axis=None, quant_min=-half, quant_max=half - 1, dtype=f"int{bits}"
    )


def entry(value: Any) -> Op:
    """The graph's input, as an operator that reads none: `value` itself."""
    return Op(reads=(), forward=lambda: np.asarray(value))


def constant(value: Any) -> Op:
    return Op(reads=(), forward=lambda: np.asarray(value), constant=True)


def scaled(source: int, by: float) -> Op:
    factor = np.float32(by)
    return Op(reads=(source,), forward=lambda x: x * factor, pullback=lambda w, x: [w[0] * factor])


def matmul(source: int, weight: Array) -> Op:
    return Op(reads=(source,), forward=lambda x: x @ weight, pullback=lambda w, x: [w[0] @ weight.T])


def added(a: int, b: int) -> Op:
    return Op(reads=(a, b), forward=lambda x, y: x + y, pullback=lambda w, x, y: [_summed(w[0], x), _summed(w[0], y)])


def multiplied(a: int, b: int) -> Op:
    return Op(
        reads=(a, b), forward=lambda x, y: x * y, pullback=lambda w, x, y: [_summed(w[0] * y, x), _summed(w[0] * x, y)]
    )


def _summed(slope: Array, like: Array) -> Array:
    """Over the axes along which `like` was repeated."""
    slope = slope.sum(tuple(range(slope.ndim - like.ndim)))
    repeated = tuple(axis for axis, size in enumerate(like.shape) if size == 1 != slope.shape[axis])
    return slope.sum(repeated, keepdims=True)


def relu(source: int) -> Op:
    return Op(reads=(source,), forward=lambda x: np.maximum(x, 0), pullback=lambda w, x: [w[0] * (x > 0)])


def relu6(source: int) -> Op:
    return Op(
        reads=(source,), forward=lambda x: np.clip(x, 0, 6), pullback=lambda w, x: [w[0] * ((x > 0) & (x < 6))]
    )  # fmt: skip


def sign(source: int) -> Op:
    """Its derivative is zero wherever it has one."""
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
    """Over the last axis."""
    return Op(
        reads=(source,),
        forward=lambda x: x.mean(-1, dtype=x.dtype),
        pullback=lambda w, x: [np.repeat(w[0][..., None] / x.shape[-1], x.shape[-1], -1)],
    )


def max_pool(source: int) -> Op:
    """The larger element of each pair along the last axis, and its index: a tuple."""

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

    return Op(reads=(source,), forward=forward, pullback=pullback)


def topk(source: int, k: int) -> Op:
    """The k largest along the last axis and their places: a tuple."""

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

    return Op(reads=(source,), forward=forward, pullback=pullback)


def split(source: int) -> Op:
    """Two halves of the last axis: a tuple."""

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
    """Along the last axis."""

    def pullback(w: Sequence[Array], x: Array) -> list[Array | None]:
        slope = np.zeros_like(x)
        slope[..., start:stop] = w[0]
        return [slope]

    return Op(reads=(source,), forward=lambda x: x[..., start:stop], pullback=pullback, moves=True)


def transposed(source: int) -> Op:
    return Op(reads=(source,), forward=lambda x: x.T, pullback=lambda w, x: [w[0].T], moves=True)


def viewed(source: int) -> Op:
    """Flat."""
    return Op(
        reads=(source,), forward=lambda x: x.reshape(-1), pullback=lambda w, x: [w[0].reshape(x.shape)], moves=True
    )


def above(source: int, threshold: float) -> Op:
    return Op(reads=(source,), forward=lambda x: x > threshold)


def chosen(condition: int, a: int, b: int) -> Op:
    """A condition has no derivative."""
    return Op(
        reads=(condition, a, b),
        forward=lambda c, x, y: np.where(c, x, y),
        pullback=lambda w, c, x, y: [None, w[0] * c, w[0] * ~c],
    )


def gathered(source: int, places: int) -> Op:
    """Elements of the last axis; places have no derivative."""

    def pullback(w: Sequence[Array], x: Array, at: Array) -> list[Array | None]:
        slope = np.zeros_like(x)
        for index in np.ndindex(at.shape):
            slope[(*index[:-1], at[index])] += w[0][index]
        return [slope, None]

    return Op(reads=(source, places), forward=lambda x, at: np.take_along_axis(x, at, -1), pullback=pullback)


def refused(source: int, why: str) -> Op:
    return Op(reads=(source,), forward=lambda x: x, refusal=why)
