"""The multiple-choice knapsack problem, against all possible choices."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qnnsweep.tasks.numerics.knapsack import least_sum

ITEMS = st.lists(
    st.lists(st.tuples(st.integers(1, 10**6).map(float), st.floats(-1.0, 300.0)), min_size=1, max_size=3),
    min_size=1,
    max_size=6,
)


@settings(deadline=None, max_examples=60)
@given(items=ITEMS, share=st.floats(0.1, 1.2))
def test_no_other_choice_within_the_limit_has_a_smaller_sum(
    items: list[list[tuple[float, float]]], share: float
) -> None:
    most = share * sum(max(size for size, _ in choices) for choices in items)
    sums = [sum(error for _, error in choice) for choice in product(*items) if sum(size for size, _ in choice) <= most]
    best = least_sum(items, most)
    if best is None:
        # The limit may be met only to the last digit.
        assert not sums or sum(min(size for size, _ in choices) for choices in items) > most * (1 - 1e-5)
        return
    chosen = [choices[number] for choices, number in zip(items, best, strict=True)]
    assert sum(size for size, _ in chosen) <= most
    assert sum(error for _, error in chosen) == pytest.approx(min(sums), abs=1e-3) or _is_at_the_limit(items, most)


def _is_at_the_limit(items: list[list[tuple[float, float]]], most: float) -> bool:
    totals = [sum(size for size, _ in choice) for choice in product(*items)]
    return any(abs(total - most) <= 1e-5 * most for total in totals)


def test_a_limit_that_a_choice_meets_exactly_is_kept() -> None:
    assert least_sum([[(4.0, 1.0), (8.0, 0.0)], [(4.0, 2.0), (8.0, 0.0)]], 12.0) == [0, 1]


def test_without_items_or_below_the_smallest_sizes_there_is_no_choice() -> None:
    assert least_sum([], 100.0) is None
    assert least_sum([[(4.0, 1.0)], [(4.0, 1.0)]], 7.0) is None
