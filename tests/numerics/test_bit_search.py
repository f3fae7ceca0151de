"""The search for the bits of weights, against all possible choices."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qnnsweep.tasks.numerics.bit_search import Bits, BitSearch
from qnnsweep.tasks.records import WeightChoices

BITS = (4, 8, 16)


def weights_of(elements: list[int]) -> list[WeightChoices]:
    return [
        WeightChoices(operator=f"layer {number}", elements=count, now=8, element_bits=BITS)
        for number, count in enumerate(elements)
    ]


def noise_of(seed: int, count: int) -> dict[Bits, float]:
    """Return the noise of every choice. The errors of coarse weights are added, so that they can cancel."""
    generator = np.random.default_rng(seed)
    errors = generator.normal(size=(count, 12)) * generator.lognormal(sigma=1.5, size=(count, 1))
    steps = {4: 1.0, 8: 1 / 16, 16: 1 / 4096}
    choices = product(BITS, repeat=count)
    return {bits: float(np.square(np.array([steps[n] for n in bits]) @ errors).sum()) + 1e-9 for bits in choices}


@settings(deadline=None, max_examples=60)
@given(elements=st.lists(st.integers(1, 5000), min_size=1, max_size=5), mean=st.floats(3, 16), seed=st.integers(0, 999))
def test_no_other_choice_has_less_noise_by_more_than_chance(elements: list[int], mean: float, seed: int) -> None:
    weights, noise = weights_of(elements), noise_of(seed, len(elements))
    most = mean * sum(elements)
    fitting = [bits for bits in noise if sum(map(int.__mul__, bits, elements)) <= most]
    best = BitSearch(noise.__getitem__, weights, most, 1024).best()
    assert (best is None) == (not fitting)
    if best is not None:
        assert best in fitting
        assert noise[best] <= 10**0.03 / 0.998 * min(noise[bits] for bits in fitting)


def test_with_too_few_runs_for_all_choices_the_search_still_finds_the_best_in_most_cases() -> None:
    elements = [100, 300, 500, 700, 900, 1100]
    most = 7.0 * sum(elements)
    right = 0
    for seed in range(20):
        noise = noise_of(seed, len(elements))
        best = BitSearch(noise.__getitem__, weights_of(elements), most, 120).best()
        assert best is not None
        fitting = [bits for bits in noise if sum(map(int.__mul__, bits, elements)) <= most]
        right += noise[best] <= 10**0.03 / 0.998 * min(noise[bits] for bits in fitting)
    assert right >= 19


@pytest.mark.parametrize(("gain_db", "found"), [(0.2, (8, 8)), (0.4, (4, 8))])
def test_a_weight_is_coarser_than_it_need_be_only_if_it_gains_more_than_chance(gain_db: float, found: Bits) -> None:
    noise: dict[Bits, float] = {(8, 8): 1.0, (8, 4): 1.0, (4, 4): 1.0, (4, 8): 10 ** (-gain_db / 10)}
    weights = [WeightChoices(operator=name, elements=100, now=8, element_bits=(4, 8)) for name in ("first", "second")]
    assert BitSearch(noise.__getitem__, weights, 1600.0, 64).best() == found


def test_the_noise_is_computed_only_as_often_as_allowed() -> None:
    elements, computed = [100] * 6, list[Bits]()
    noise = noise_of(0, len(elements))

    def counted(bits: Bits) -> float:
        computed.append(bits)
        return noise[bits]

    best = BitSearch(counted, weights_of(elements), 8.0 * sum(elements), 40).best()
    assert best is not None
    assert len(computed) == len(set(computed)) <= 1 + 2 * len(elements) + 1 + 40
