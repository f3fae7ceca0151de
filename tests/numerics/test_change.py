"""The decision whether a series has changed, and which operators are worse."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.numerics.change import baseline, discovered, normal_score, student_quantile
from qnnsweep.tasks.numerics.series import SERIES
from qnnsweep.tasks.numerics.trend import Night, assess, probability
from tests.numerics.test_trend import CONFIG, NOISY, SNR

PROBABILITIES = st.lists(st.floats(0, 1), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("freedom", "score", "table"), [(5, 2.3263, 3.365), (10, 3.0902, 4.144), (30, 3.0902, 3.385), (60, 1.6449, 1.671)]
)
def test_the_quantiles_of_students_distribution_are_those_of_its_table(
    freedom: int, score: float, table: float
) -> None:
    assert student_quantile(score, freedom) == pytest.approx(table, rel=0.01)
    assert normal_score(table, freedom) == pytest.approx(score, rel=0.01)


@given(st.lists(st.integers(-1_000, 1_000).map(float), min_size=1, max_size=60), st.integers(-1_000, 1_000))
def test_the_level_lies_within_the_middle_half_and_moves_with_the_values(values: list[float], shift: int) -> None:
    before, after = (baseline([group], SNR, 0.0) for group in (values, [value + shift for value in values]))
    ranked, outer = sorted(values), (len(values) + 1) // 4
    assert ranked[outer] - 1e-9 <= before.level <= ranked[-1 - outer] + 1e-9
    assert (after.level, after.noise) == (pytest.approx(before.level + shift), pytest.approx(before.noise))


def test_the_noise_of_a_baseline_is_the_standard_deviation_around_the_level_of_each_night() -> None:
    single = baseline([NOISY], SNR, 1.0)
    assert single.noise == pytest.approx(statistics.stdev(NOISY, single.level), rel=0.01)
    two = baseline([[value + 20 for value in NOISY], NOISY], SNR, 1.0)
    assert (two.level, two.noise, two.nights) == (single.level, pytest.approx(single.noise), 10)


def test_heavy_tails_and_few_nights_enlarge_the_unit_but_not_the_noise() -> None:
    normal = [statistics.NormalDist().inv_cdf((rank + 0.5) / 60) for rank in range(60)]
    heavy = [value**3 / 4 for value in normal]
    few = normal[3::6]
    units = [(before := baseline([values], SNR, 0.0)).unit / before.noise for values in (normal, heavy, few)]
    assert units[0] == pytest.approx(1.27, abs=0.02)
    assert units[1] > 3
    assert units[2] == pytest.approx(6 * math.sqrt(1 + 1.2 / 10))


def test_a_floor_of_zero_has_a_smallest_unit_and_otherwise_no_single_night_is_worse() -> None:
    assert baseline([[0.0] * 30], SERIES["operators_introduced"], 0.0).limit(16) == 8
    assert baseline([[0.0] * 30], SNR, 0.0).limit(16) == math.inf


@given(PROBABILITIES, st.sampled_from([0.01, 0.05, 0.2]))
def test_the_discoveries_are_those_of_the_procedure_of_benjamini_and_hochberg(values: list[float], rate: float) -> None:
    largest = discovered(values, rate)
    count = sum(value <= largest for value in values)
    assert largest == 0 or largest <= rate * count / len(values)
    # No larger set of the smallest probabilities is within the rate.
    for more in range(count + 1, len(values) + 1):
        assert sorted(values)[more - 1] > rate * more / len(values)


def test_the_probability_is_one_within_the_floor_and_zero_for_a_change_without_noise() -> None:
    def chance(values: list[float], tonight: float, floor: float = 3.0) -> float:
        nights = [Night(run=str(number), value=value, passed=True) for number, value in enumerate(values)]
        return probability(nights, Night(run="tonight", value=tonight, passed=True), SNR, floor, CONFIG)

    assert chance([30.0] * 10, 27.1) == 1.0
    assert chance([30.0] * 10, 26.9) == 0.0
    assert chance([30.0] * 2, 20.0) == 1.0  # no baseline
    assert chance(NOISY * 3, 26.9) < 1e-4 < chance(NOISY * 3, 29.0, floor=0.5) < 0.05


def test_a_series_that_is_worse_by_decision_is_regressed_or_else_steady() -> None:
    nights = [Night(run=str(number), value=value, passed=True) for number, value in enumerate(NOISY * 3)]
    tonight = Night(run="tonight", value=29.0, passed=True)
    verdicts = [assess(nights, tonight, SNR, 0.5, CONFIG, worse).verdict for worse in (True, False)]
    assert verdicts == ["regressed", "steady"]
