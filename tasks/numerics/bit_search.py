"""The search for the numbers of bits of weights with the least noise, if all weights together may have only so many.

The sum of the noise of single changes is not the noise of all changes together. So the sum, which an integer program
minimizes, only says where the search begins. It then computes the noise of the choices with the smallest sums, and
exchanges bits between weights as long as this helps.

The errors of two coarse weights can cancel, on few samples by chance, and then not on others. So a choice in which a
weight is coarser than it need be must gain more than chance usually does.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from operator import ne

import numpy as np

from qnnsweep.tasks.numerics.knapsack import least_sum
from qnnsweep.tasks.records import WeightChoices

Bits = tuple[int, ...]
"""The number of bits of an element of each weight."""
_MOST_LISTED = 100_000  # choices
_LEAST_GAIN = 0.998  # times the noise: 0.01 dB
_CHANCE = 10**0.03  # times the noise, 0.3 dB: what a choice with weights coarser than they need be must gain


class BitSearch:
    """The search for the bits of weights that have together at most `most_bits`, with the least noise.

    `noise`: a function of the bits, in the order of `weights`. After the single changes and the beginning, it is called
    `most_runs` times at most.
    """

    def __init__(
        self, noise: Callable[[Bits], float], weights: Sequence[WeightChoices], most_bits: float, most_runs: int
    ) -> None:
        self._noise, self._weights, self._most_bits, self._most_runs = noise, weights, most_bits, most_runs
        self._reached: dict[Bits, float] = {}
        self._single: dict[tuple[int, int], float] = {}

    def best(self) -> Bits | None:
        """Return the best bits that were found; None if even the smallest are too many."""
        if not self._fits(tuple(min(choices.element_bits) for choices in self._weights)):
            return None
        now = tuple(choices.now for choices in self._weights)
        base = self._of(now)
        for place, choices in enumerate(self._weights):
            for bits in choices.element_bits:
                self._single[place, bits] = self._of((*now[:place], bits, *now[place + 1 :])) - base
        unit = max(base, float(np.finfo(float).tiny))
        items = [
            [(float(bits * choices.elements), self._single[place, bits] / unit) for bits in choices.element_bits]
            for place, choices in enumerate(self._weights)
        ]
        if (start := least_sum(items, self._most_bits)) is None:
            return None
        cheapest = tuple(choices.element_bits[number] for choices, number in zip(self._weights, start, strict=True))
        self._of(self._filled(cheapest))
        most_runs = len(self._reached) + self._most_runs
        if math.prod(len(choices.element_bits) for choices in self._weights) <= _MOST_LISTED:
            listed = filter(self._fits, product(*(choices.element_bits for choices in self._weights)))
            for bits in sorted(listed, key=self._expected)[: self._most_runs // 2]:
                self._of(bits)
        best = min(filter(self._fits, self._reached), key=self._judged)
        is_better = True
        while is_better:
            is_better = False
            for near in sorted(self._near(best), key=self._expected):
                if len(self._reached) >= most_runs:
                    return best
                if self._judged(near) < _LEAST_GAIN * self._judged(best):
                    best, is_better = near, True
                    break
        return best

    def _room(self, bits: Bits) -> float:
        """Return how many more bits all weights together may have; it is negative if these are too many."""
        used = sum(new * choices.elements for new, choices in zip(bits, self._weights, strict=True))
        return self._most_bits - used

    def _fits(self, bits: Bits) -> bool:
        return self._room(bits) >= 0

    def _judged(self, bits: Bits) -> float:
        """Return the noise, times `_CHANCE` if a weight is coarser than it need be."""
        return self._of(bits) * (1 if next(self._finer(bits), None) is None else _CHANCE)

    def _filled(self, bits: Bits) -> Bits:
        """Return the bits after the coarser weights were made finer, as far as there is room."""
        while finer := min(self._finer(bits), key=self._expected, default=None):
            bits = finer
        return bits

    def _finer(self, bits: Bits) -> Iterator[Bits]:
        """Yield the bits with one of the coarser weights finer by one choice, if there is room for it."""
        room = self._room(bits)
        for place, choices in enumerate(self._weights):
            if bits[place] < choices.now:
                new = min(other for other in choices.element_bits if other > bits[place])
                if (new - bits[place]) * choices.elements <= room:
                    yield (*bits[:place], new, *bits[place + 1 :])

    def _near(self, bits: Bits) -> Iterator[Bits]:
        """Yield the bits that fit and differ at one or two weights, as they are, and finer where there is room."""
        for places in (*combinations(range(len(bits)), 1), *combinations(range(len(bits)), 2)):
            for changed in product(*(self._weights[place].element_bits for place in places)):
                near = list(bits)
                for place, new in zip(places, changed, strict=True):
                    near[place] = new
                if sum(map(ne, near, bits)) == len(places) and self._fits(tuple(near)):
                    yield from {tuple(near), self._filled(tuple(near))}

    def _expected(self, bits: Bits) -> float:
        """Return the sum of the noise of single changes."""
        return sum(self._single[place, number] for place, number in enumerate(bits))

    def _of(self, bits: Bits) -> float:
        if bits not in self._reached:
            self._reached[bits] = self._noise(bits)
        return self._reached[bits]
