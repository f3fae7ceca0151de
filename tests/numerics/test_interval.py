"""The intervals of figures over the evaluation samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.numerics import interval
from qnnsweep.tasks.numerics.interval import bootstrap_interval, wilson_interval

NUMBERS = st.lists(st.floats(0, 1e6), min_size=2, max_size=20)


@given(NUMBERS)
def test_a_bootstrap_interval_is_between_the_smallest_and_the_largest_value(values: list[float]) -> None:
    low, high = bootstrap_interval(values) or (np.nan, np.nan)
    slack = 1e-9 * max(values)
    assert min(values) - slack <= low <= np.mean(values) + slack
    assert np.mean(values) - slack <= high <= max(values) + slack


@given(NUMBERS.flatmap(lambda values: st.tuples(st.just(values), st.permutations(values))))
def test_a_bootstrap_interval_does_not_depend_on_the_order(both: tuple[list[float], list[float]]) -> None:
    assert bootstrap_interval(both[0]) == bootstrap_interval(both[1])


@given(NUMBERS, st.integers(-20, 20))
def test_a_bootstrap_interval_has_the_unit_of_its_values(values: list[float], doublings: int) -> None:
    scaled = bootstrap_interval([value * 2.0**doublings for value in values])
    assert scaled == pytest.approx([limit * 2.0**doublings for limit in bootstrap_interval(values) or ()], rel=1e-12)


def test_the_bootstrap_interval_of_many_values_is_that_of_their_normal_mean() -> None:
    values = np.random.default_rng(3).exponential(2.0, 1000)
    error = 1.96 * values.std() / np.sqrt(len(values))
    assert bootstrap_interval(list(values)) == pytest.approx(
        (values.mean() - error, values.mean() + error), abs=0.1 * error
    )


def test_the_resampled_values_are_never_all_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [float(value) for value in range(10)]
    whole = bootstrap_interval(values)
    monkeypatch.setattr(interval, "_BLOCK", 70)  # seven of the 2000 means at a time
    assert bootstrap_interval(values) == whole


def test_of_fewer_than_two_samples_there_is_no_interval() -> None:
    assert [bootstrap_interval([]), bootstrap_interval([1.0])] == [None, None]
    assert [wilson_interval(0, 0), wilson_interval(1, 1)] == [None, None]


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [
        # Wilson's formula for 95 %, as computed by statsmodels' proportion_confint(method="wilson").
        (5, 5, 0.5655, 1.0),
        (0, 5, 0.0, 0.4345),
        (81, 263, 0.2553, 0.3662),
        (100, 100, 0.9630, 1.0),
    ],
)
def test_a_score_interval_has_the_bounds_of_wilson(hits: int, count: int, low: float, high: float) -> None:
    assert wilson_interval(hits, count) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(2, 10_000).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count))))
def test_a_score_interval_contains_the_share_and_has_a_width(hits_of: tuple[int, int]) -> None:
    hits, count = hits_of
    low, high = wilson_interval(hits, count) or (np.nan, np.nan)
    assert 0 <= low <= hits / count + 1e-12
    assert hits / count - 1e-12 <= high <= 1
    assert high - low > 1 / (2 * count)
    assert wilson_interval(count - hits, count) == pytest.approx((1 - high, 1 - low), abs=1e-12)
