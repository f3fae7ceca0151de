"""The choice of the samples whose operators are captured, and the noise by which they are chosen."""

from __future__ import annotations

import math
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.numerics.samples import choose, sample_noise, worst_output

ONE = np.ones(4, np.float32)


@pytest.mark.parametrize(
    ("noise", "count", "chosen"),
    [
        ([], 4, []),
        ([0.5], 4, [(0, "worst")]),
        ([0.1, 0.2, 0.3], 0, []),
        ([0.1, 0.2, 0.3], 1, [(2, "worst")]),
        ([0.1, 0.2, 0.3], 2, [(1, "typical"), (2, "worst")]),
        ([0.1, 0.3], 4, [(0, "typical"), (1, "worst")]),
        # The best sample explains least: it is chosen if nothing else is left.
        ([0.1, 0.2, 0.3], 4, [(0, "spread"), (1, "typical"), (2, "worst")]),
        ([0.1, 0.2, 0.3, 0.4, 0.5], 4, [(1, "spread"), (2, "typical"), (3, "spread"), (4, "worst")]),
        ([number / 10 for number in range(20)], 4, [(9, "typical"), (12, "spread"), (16, "spread"), (19, "worst")]),
        # Of samples with equal noise, the earlier one counts as worse.
        ([0.0] * 8, 3, [(0, "worst"), (2, "spread"), (4, "typical")]),
        ([0.1, math.inf, 0.2, math.inf], 2, [(1, "worst"), (2, "typical")]),
    ],
)
def test_the_worst_sample_the_median_and_samples_between_them_are_chosen(
    noise: list[float], count: int, chosen: list[tuple[int, str]]
) -> None:
    assert [astuple(choice) for choice in choose(noise, count)] == chosen


@given(st.lists(st.floats(0.0, math.inf), max_size=40), st.integers(0, 50))
def test_as_many_samples_are_chosen_as_there_are_or_as_are_asked_for(noise: list[float], count: int) -> None:
    chosen = choose(noise, count)
    numbers = [choice.sample for choice in chosen]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == min(count, len(noise))
    worst = [choice.sample for choice in chosen if choice.role == "worst"]
    assert worst == ([noise.index(max(noise))] if chosen else [])


def test_the_noise_of_a_sample_is_that_of_its_worst_output() -> None:
    exact, near, far = (ONE, ONE), (ONE * 1.01, ONE), (ONE * 2, ONE)
    assert sample_noise([exact]) == 0.0
    assert sample_noise([exact, near]) == pytest.approx(1e-4, rel=1e-3)
    assert sample_noise([far, near]) == pytest.approx(1.0)
    assert sample_noise([]) == 0.0


def test_an_output_with_other_nans_or_beside_a_reference_of_zeros_has_infinite_noise() -> None:
    nan = np.array([np.nan, 1, 1, 1], np.float32)
    assert sample_noise([(nan, ONE)]) == math.inf
    assert sample_noise([(ONE, nan)]) == math.inf
    assert sample_noise([(nan, nan)]) == 0.0
    assert sample_noise([(ONE, ONE * 0)]) == math.inf
    assert sample_noise([(ONE.reshape(2, 2), ONE)]) == math.inf


def test_the_worst_output_is_that_with_the_most_noise_of_the_given_samples() -> None:
    reference = {f"{sample}/{output}": ONE for sample in range(3) for output in range(2)}
    actual = reference | {"0/1": ONE * 3, "1/0": ONE * 2, "2/1": ONE * 1.5}
    assert worst_output(range(3), 2, actual, reference) == (0, 1)
    assert worst_output([1, 2], 2, actual, reference) == (1, 0)
    assert worst_output([2, 1], 2, reference, reference) == (2, 0)
