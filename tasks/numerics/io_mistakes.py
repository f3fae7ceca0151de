"""The mistakes that are possible where tensors pass an interface: another order of tensors, another order of axes."""

import itertools
from collections.abc import Iterator, Sequence

from qnnsweep.tasks.records import TensorSpec

_ALL_ORDERS_OF = 3  # the largest number of equal tensors for which all orders are tried


def orders(specs: Sequence[TensorSpec]) -> list[tuple[int, ...]]:
    """Return orders in which tensors of the same shape and dtype can be mistaken for each other.

    An order maps each position to the index of the tensor that takes the position. For up to three equal tensors, all
    orders are returned. For more than three, the exchanges of two neighbours and the rotations by one position, in both
    directions, are returned.
    """
    equal: dict[object, list[int]] = {}
    for index, spec in enumerate(specs):
        equal.setdefault((spec.shape, spec.dtype), []).append(index)
    possible: list[tuple[int, ...]] = []
    for positions in equal.values():
        for permuted in _permutations(positions):
            order = list(range(len(specs)))
            for position, index in zip(positions, permuted, strict=True):
                order[position] = index
            possible.append(tuple(order))
    return possible


def layouts(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the axis orders, other than the tensor's own, in which its memory could be laid out by mistake.

    These orders are: channels last instead of channels first, channels first instead of channels last, and an exchange
    of the last two axes. Orders that move no element are left out.
    """
    rank = len(shape)
    inner = tuple(range(1, rank))
    candidates = [
        (0, *inner[1:], 1) if rank > 2 else (),
        (0, rank - 1, *inner[:-1]) if rank > 2 else (),
        (*range(rank - 2), rank - 1, rank - 2) if rank > 1 else (),
    ]
    distinct: dict[tuple[int, ...], tuple[int, ...]] = {}
    for order in candidates:
        # The position of an axis of length 1 has no effect: in memory, orders can equal each other or the tensor's own.
        long_axes = tuple(axis for axis in order if shape[axis] > 1)
        if list(long_axes) != sorted(long_axes):
            distinct.setdefault(long_axes, order)
    return list(distinct.values())


def _permutations(indices: Sequence[int]) -> Iterator[tuple[int, ...]]:
    original = tuple(indices)
    if len(original) <= _ALL_ORDERS_OF:
        yield from (order for order in itertools.permutations(original) if order != original)
        return
    for left in range(len(original) - 1):
        yield (*original[:left], original[left + 1], original[left], *original[left + 2 :])
    yield (*original[1:], original[0])
    yield (original[-1], *original[:-1])
