"""Operators in NumPy with their derivatives in closed form, and programs of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qnnsweep.tasks.numerics.element_use import Array, Value
from tests.numerics.numpy_program import Op as Op
from tests.numerics.numpy_program import Program as Program


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
