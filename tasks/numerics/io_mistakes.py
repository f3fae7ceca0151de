"""The mistakes that can be made where tensors pass from one world to another: another order, other axes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from tasks.records import TensorSpec

_ALL_ORDERS_OF = 3


def orders(specs: Sequence[TensorSpec]) -> list[tuple[int, ...]]:
    """Orders in which tensors that look alike could be taken for each other: position to the tensor that stands there.

    All orders of up to three alike; of more, neighbours that change places and all moved on by one, either way.
    """
    alike: dict[object, list[int]] = {}
    for index, spec in enumerate(specs):
        alike.setdefault((spec.shape, spec.dtype), []).append(index)
    found: list[tuple[int, ...]] = []
    for places in alike.values():
        for taken in _orders_of(places):
            order = list(range(len(specs)))
            for place, index in zip(places, taken, strict=True):
                order[place] = index
            found.append(tuple(order))
    return found


def layouts(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Axis orders, other than the tensor's own, in which its memory could be laid out: channels last for channels
    first, the other way round, and the last two axes for each other. Those that move nothing are left out."""
    rank = len(shape)
    inner = tuple(range(1, rank))
    candidates = [
        (0, *inner[1:], 1) if rank > 2 else (),
        (0, rank - 1, *inner[:-1]) if rank > 2 else (),
        (*range(rank - 2), rank - 1, rank - 2) if rank > 1 else (),
    ]
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    for order in candidates:
        # Axes of one element may stand anywhere: two orders may be one in memory, or the tensor's own.
        long = tuple(axis for axis in order if shape[axis] > 1)
        if list(long) != sorted(long):
            found.setdefault(long, order)
    return list(found.values())


def _orders_of(places: Sequence[int]) -> Iterator[tuple[int, ...]]:
    own = tuple(places)
    if len(own) <= _ALL_ORDERS_OF:
        yield from (order for order in itertools.permutations(own) if order != own)
        return
    for left in range(len(own) - 1):
        yield (*own[:left], own[left + 1], own[left], *own[left + 2 :])
    yield (*own[1:], own[0])
    yield (own[-1], *own[:-1])
