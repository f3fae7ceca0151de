"""The verdict on a night, from the nights before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.conf.schema import FloorConfig, TrendConfig
from qnnsweep.tasks.numerics.change import baseline
from qnnsweep.tasks.numerics.series import OPERATOR_SERIES, SERIES, STEP_SERIES, VALUE_SERIES, Series
from qnnsweep.tasks.numerics.trend import BAD, Assessment, Night, assess

SNR = SERIES["final_snr_db"]
LATENCY = SERIES["latency_p50_ms"]
CONFIG = TrendConfig()
# Integers, so that sums and products with them are exact.
VALUES = st.lists(st.none() | st.integers(-1_000, 1_000).map(float), min_size=1, max_size=45)


def assess_all(
    values: Sequence[float | None],
    series: Series = SNR,
    floor: float = 1.0,
    config: TrendConfig = CONFIG,
    failed: Sequence[int] = (),
    inputs: str | None = None,
) -> list[Assessment]:
    """Return the assessment of every night, each with the verdicts of the nights before it.

    `inputs`: a letter per night: nights with the same letter have the same inputs, and the series has no noise.
    """
    nights: list[Night] = []
    assessments: list[Assessment] = []
    for number, value in enumerate(values):
        of_night = None if inputs is None else inputs[min(number, len(inputs) - 1)]
        night = Night(run=f"run{number:03}", value=value, passed=number not in failed, inputs=of_night)
        assessments.append(assess(nights, night, series, floor, config))
        nights.append(replace(night, verdict=assessments[-1].verdict, first_bad_run=assessments[-1].first_bad_run))
    return assessments


def verdicts(values: Sequence[float | None], **how: object) -> list[str]:
    return [night.verdict for night in assess_all(values, **how)]  # type: ignore[arg-type]


def test_every_series_has_a_floor_and_every_floor_a_series() -> None:
    assert {field.name for field in fields(FloorConfig)} == {*SERIES, *OPERATOR_SERIES, *STEP_SERIES}
    assert {*SERIES} > VALUE_SERIES


@given(st.floats(-1e6, 1e6), st.integers(1, 45), st.sampled_from([*SERIES.values(), *OPERATOR_SERIES.values()]))
def test_a_series_that_never_changes_never_gets_worse_or_better(value: float, nights: int, series: Series) -> None:
    assert set(verdicts([value] * nights, series=series, floor=0.0)) <= {"new", "no_baseline", "steady"}


@given(VALUES, st.integers(-1_000, 1_000))
def test_adding_a_constant_changes_no_verdict(values: list[float | None], shift: int) -> None:
    moved = [None if value is None else value + shift for value in values]
    assert verdicts(moved, floor=2.0) == verdicts(values, floor=2.0)


@given(VALUES, st.sampled_from([0.25, 0.5, 2.0, 64.0]))
def test_another_unit_changes_no_verdict(values: list[float | None], factor: float) -> None:
    scaled = [None if value is None else value * factor for value in values]
    assert verdicts(scaled, floor=2.0 * factor) == verdicts(values, floor=2.0)
    # A relative floor needs no conversion.
    assert verdicts(scaled, series=LATENCY, floor=0.5) == verdicts(values, series=LATENCY, floor=0.5)


@given(VALUES)
def test_a_series_of_which_less_is_better_mirrors_one_of_which_more_is_better(values: list[float | None]) -> None:
    mirrored = [None if value is None else -value for value in values]
    assert verdicts(mirrored, series=replace(SNR, better=-1)) == verdicts(values)


@given(VALUES)
def test_a_missing_value_is_undefined_and_nothing_else_is(values: list[float | None]) -> None:
    assert [verdict == "undefined" for verdict in verdicts(values)] == [value is None for value in values]


@given(VALUES, st.integers(0, 50))
def test_a_worse_value_gets_no_better_verdict(values: list[float | None], less: int) -> None:
    rank = ["improved", "steady", "still_bad", "regressed"]
    last = values[-1]
    if last is None:
        return
    before, after = (verdicts([*values[:-1], value])[-1] for value in (last, last - less))
    if before in rank:
        assert rank.index(after) >= rank.index(before)


@given(st.permutations([0.0, 3.0, 4.0, 9.0]), st.integers(-20, 20))
def test_the_order_of_the_nights_of_a_short_baseline_does_not_matter(values: list[float], value: int) -> None:
    def summary(values: Sequence[float]) -> tuple[object, ...]:
        nights = [Night(run=str(number), value=value, passed=True) for number, value in enumerate(values)]
        tonight = assess(nights, Night(run="tonight", value=float(value), passed=True), SNR, 1.0, CONFIG)
        return tonight.verdict, tonight.nights, tonight.level, tonight.noise

    assert summary(values) == summary(sorted(values))


@given(VALUES)
def test_exactly_the_bad_verdicts_name_their_first_bad_run(values: list[float | None]) -> None:
    nights = assess_all(values)
    began: set[str | None] = set()
    for number, night in enumerate(nights):
        assert (night.first_bad_run is not None) == (night.verdict in BAD)
        if night.verdict == "regressed":
            began.add(night.first_bad_run)
            assert "run000" < str(night.first_bad_run) <= f"run{number:03}"
        if night.verdict == "still_bad":
            assert night.first_bad_run in began


NOISY = [30.0, 30.2, 29.9, 30.1, 29.8, 30.0, 30.3, 29.7, 30.1, 29.9]


def test_a_step_is_one_regression_and_still_bad_until_it_has_lasted_as_long_as_a_baseline() -> None:
    assert verdicts([30.0] * 10 + [25.0] * 40) == [
        "new",
        *["no_baseline"] * 2,
        *["steady"] * 7,
        "regressed",
        *["still_bad"] * 29,
        *["steady"] * 10,
    ]


def test_a_return_to_the_baseline_is_no_regression_and_no_improvement() -> None:
    assert verdicts([30.0] * 10 + [25.0, 30.0, 30.0])[-3:] == ["regressed", "steady", "steady"]
    assert verdicts([30.0] * 10 + [35.0, 30.0, 30.0])[-3:] == ["improved", "steady", "steady"]


def test_a_spike_is_not_in_the_baseline() -> None:
    tonight = assess_all([*NOISY, 5.0, 30.0, 30.0])[-1]
    assert (tonight.nights, tonight.level) == (11, 30.0)


def test_a_later_spike_is_reported_only_if_it_is_more_than_twice_as_large() -> None:
    quiet = [30.0] * 10
    assert verdicts([*quiet, 28.0, *quiet, 28.0, *quiet, 26.0, *quiet]).count("regressed") == 1
    assert verdicts([*quiet, 28.0, *quiet, 25.0, *quiet]).count("regressed") == 2
    assert verdicts([*quiet, 28.0, *quiet, *[28.0] * 10])[21:24] == ["steady", "regressed", "still_bad"]


def test_an_error_that_comes_and_goes_is_one_regression() -> None:
    assert verdicts([30.0] * 5 + [20.0, 30.0, 20.0, 30.0, 20.0])[-5:] == [
        "regressed", "steady", "still_bad", "steady", "still_bad",
    ]  # fmt: skip


def test_a_further_step_is_another_regression() -> None:
    nights = assess_all([30.0] * 10 + [25.0, 25.0, 20.0, 20.0])[-4:]
    assert [night.verdict for night in nights] == ["regressed", "still_bad", "regressed", "still_bad"]
    assert [(night.first_bad_run, night.last_good_run) for night in nights] == [
        ("run010", "run009"), ("run010", "run009"), ("run012", "run011"), ("run012", "run011"),
    ]  # fmt: skip


def test_the_verdict_on_a_value_near_the_limit_does_not_change_with_its_noise() -> None:
    assert verdicts([30.0] * 10 + [28.9, 29.1, 28.9, 29.1])[-4:] == ["regressed", *["still_bad"] * 3]


def test_a_better_level_becomes_the_baseline_after_three_nights_and_its_loss_is_a_regression() -> None:
    assert verdicts([20.0] * 10 + [30.0] * 5 + [20.0])[10:] == [*["improved"] * 3, "steady", "steady", "regressed"]


def test_a_slow_drift_is_a_regression_when_it_exceeds_the_floor() -> None:
    values = [30.0] * 20 + [30.0 - 0.0625 * night for night in range(1, 25)]
    drifting = verdicts(values)
    assert drifting.index("regressed") == 20 + 17  # 1.0625 dB less, one night later because of the median of three
    assert drifting.count("regressed") == 1


def test_an_improvement_that_drifts_is_no_regression() -> None:
    assert not {*BAD} & {*verdicts([30.0 + 0.0625 * night for night in range(70)])}


def test_nights_without_a_value_are_skipped() -> None:
    assert verdicts([30.0, None, 30.0, None, 30.0, None, 30.0, 20.0, None, 20.0]) == [
        "new", "undefined", "no_baseline", "undefined", "no_baseline", "undefined", "steady", "regressed", "undefined",
        "still_bad",
    ]  # fmt: skip


def test_a_night_that_failed_its_own_gate_is_not_in_the_baseline() -> None:
    assert verdicts([3.0, 3.0, *[30.0] * 3, 3.0], failed=[0, 1]) == ["new", *["no_baseline"] * 4, "regressed"]
    assert verdicts([30.0] * 3 + [3.0] * 45, failed=range(3, 48))[3:] == ["regressed", *["still_bad"] * 44]


def test_one_night_must_be_worse_by_more_than_the_floor_and_the_noise() -> None:
    values = [10.0 + value - 30.0 for value in NOISY]
    before = baseline([values[:-1]], LATENCY, 0.05)
    noise = before.limit(CONFIG.sigmas)
    assert before.floor == 0.05 * before.level < noise
    for more, floor, expected in (
        (noise + 0.01, 0.05, "regressed"),
        (noise - 0.01, 0.05, "steady"),
        (noise + 0.01, (noise + 0.05) / before.level, "steady"),
        (noise + 0.06, (noise + 0.05) / before.level, "regressed"),
    ):
        assert verdicts([*values, before.level + more], series=LATENCY, floor=floor)[-1] == expected


def test_a_smaller_change_is_a_regression_on_its_second_night_and_began_on_its_first() -> None:
    nights = assess_all([*NOISY * 4, 28.5, 28.6, 28.4, 30.1])[-4:]
    assert [(night.verdict, night.first_bad_run, night.last_good_run) for night in nights] == [
        ("steady", None, None),
        ("regressed", "run040", "run039"),
        ("still_bad", "run040", "run039"),
        ("steady", None, None),
    ]
    assert nights[1].nights == 40


def test_a_change_within_the_floor_is_no_regression_however_long_it_lasts() -> None:
    assert not {*BAD} & {*verdicts([*NOISY * 4, *[value - 0.8 for value in NOISY * 3]])}


def test_one_lucky_first_night_makes_no_later_night_bad() -> None:
    assert verdicts([31.5] + [30.0, 30.1, 29.9] * 15) == ["new", *["no_baseline"] * 2, *["steady"] * 43]


def test_a_series_without_noise_is_judged_from_the_fourth_night_on_that_night() -> None:
    assert verdicts([30.0] * 3 + [28.9]) == ["new", "no_baseline", "no_baseline", "regressed"]
    assert verdicts([1.0] * 3 + [0.0], series=SERIES["passed"], floor=0.0)[-1] == "regressed"


def test_a_count_that_is_worse_by_one_is_a_regression_when_it_lasts_and_by_many_at_once() -> None:
    count, before = SERIES["operators_introduced"], [0.0] * 20
    assert verdicts([*before, 1.0, 0.0, 0.0, 0.0], series=count, floor=0.0)[20:] == ["steady"] * 4
    assert verdicts([*before, *[1.0] * 6], series=count, floor=0.0)[20:] == [*["steady"] * 4, "regressed", "still_bad"]
    assert verdicts([*before, 3.0, 3.0], series=count, floor=0.0)[20:] == ["steady", "regressed"]
    assert verdicts([*before, 9.0], series=count, floor=0.0)[20:] == ["regressed"]


EXACT: dict[str, tuple[list[float], list[str]]] = {
    "from the second night on": ([31.0, 21.0], ["new", "regressed"]),
    "after one bad night among the first three": (
        [31.0, 31.0, 11.0, 31.0, 21.0], ["new", "steady", "regressed", "steady", "regressed"],
    ),
    "each return": (
        [31.0, 21.0, 31.0, 21.0, 21.0, 31.0, 21.0],
        ["new", "regressed", "steady", "regressed", "still_bad", "steady", "regressed"],
    ),
    "a further loss": ([31.0, 28.0, 25.0, 25.5], ["new", "regressed", "regressed", "still_bad"]),
    "never within the floor": ([31.0, 30.5, 30.1, 31.0], ["new", *["steady"] * 3]),
}  # fmt: skip
"""Series without noise, whose floor is 1 dB."""


@pytest.mark.parametrize("kind", EXACT)
def test_a_series_without_noise_is_judged_exactly(kind: str) -> None:
    values, expected = EXACT[kind]
    assert verdicts(values, inputs="a") == expected
    mirrored = [-value for value in values]
    assert verdicts(mirrored, series=replace(SNR, better=-1), inputs="a") == expected


def test_a_count_without_noise_is_judged_exactly() -> None:
    count = SERIES["operators_introduced"]
    assert verdicts([0.0, 1.0, 0.0, 1.0], series=count, floor=0.0, inputs="a") == [
        "new", "regressed", "steady", "regressed",
    ]  # fmt: skip


def test_a_drift_of_a_series_without_noise_is_reported_when_it_exceeds_the_floor() -> None:
    values = [31.0 - 0.125 * night for night in range(12)]
    inputs = "abcdefghijkl"  # something else on each night, as in development
    assert verdicts([31.0] * 10 + values, inputs="a" * 10 + inputs)[10:].index("regressed") == 9  # 1.125 dB


def test_a_better_value_without_noise_becomes_the_baseline_after_three_nights() -> None:
    nights = verdicts([21.0, 31.0, 31.0, 31.0, 31.0, 21.0], inputs="abbbba")
    assert nights == ["new", *["improved"] * 3, "steady", "regressed"]


def test_a_series_that_varies_although_its_inputs_are_equal_is_judged_by_its_noise() -> None:
    assert verdicts([*NOISY * 2, 28.5], inputs="a")[-1] == "steady"
    assert verdicts([*NOISY * 2, 28.5, 28.6], inputs="a")[-1] == "regressed"


def test_a_night_that_failed_its_own_tolerance_is_in_no_baseline_of_a_series_without_noise() -> None:
    assert verdicts([11.0, 31.0, 21.0], failed=[0], inputs="a") == ["new", "no_baseline", "regressed"]


@pytest.mark.parametrize("good", [10, 30, 80])
@pytest.mark.parametrize(
    "first", [(11.2, 31, 31), (31, 11.2, 31), (31, 31, 11.2), (11.2, 11.2, 31), (31, 11.2, 5), (14.8, 31, 26)]
)
def test_bad_nights_before_the_first_verdict_hide_no_later_drop(first: tuple[float, ...], good: int) -> None:
    for noise in (0.0, 0.05, 0.3):
        chance = np.random.default_rng(good)
        before = np.array([*first, *[31.0] * good]) + noise * chance.standard_normal(3 + good)
        after = 21.0 + noise * chance.standard_normal(2)
        assert "regressed" in verdicts([*before.tolist(), *after.tolist()])[-2:], noise


def test_bad_nights_that_come_again_are_noise() -> None:
    """Three of thirteen nights are no exception."""
    values = [31.0, 11.2, 31.0, 11.2, 31.0, 11.2, *[31.0] * 7]
    assert verdicts([*values, 11.2])[-1] == "steady"


NOISE = {
    "normal": lambda chance: chance.standard_normal(60),
    "laplace": lambda chance: chance.laplace(0, 1 / math.sqrt(2), 60),
    "t3": lambda chance: chance.standard_t(3, 60) / math.sqrt(3),
    "quantized to half a standard deviation": lambda chance: np.rint(chance.standard_normal(60) * 2) / 2,
    "quantized to two standard deviations": lambda chance: np.rint(chance.standard_normal(60) / 2) * 2,
}


@pytest.mark.parametrize("kind", NOISE)
def test_noise_of_any_kind_is_hardly_ever_a_regression(kind: str) -> None:
    chance = np.random.default_rng(1)
    alarms = [verdicts(NOISE[kind](chance).tolist(), floor=0.0).count("regressed") for _ in range(50)]
    assert sum(alarms) <= 2  # in 3,000 nights


def test_a_count_that_flickers_is_hardly_ever_a_regression() -> None:
    chance = np.random.default_rng(1)
    histories = [(chance.random(60) < 0.05).astype(float).tolist() for _ in range(50)]
    counts = [verdicts(values, series=SERIES["operators_introduced"], floor=0.0) for values in histories]
    assert sum(verdicts.count("regressed") for verdicts in counts) == 0


def test_a_step_in_a_young_series_is_reported_within_ten_nights() -> None:
    for size, before, least in ((6, 11, 34), (4, 19, 37)):  # of 40
        assert sum(0 < delay <= 10 for delay in delays([-size] * 10, before=before)) >= least


def test_a_young_series_with_related_nights_is_rarely_a_regression() -> None:
    """Each night is half the night before: the noise of a phone that is warm for days."""
    chance = np.random.default_rng(1)
    alarms = 0
    for _ in range(50):
        values = [float(chance.standard_normal())]
        for _ in range(39):
            values.append(0.5 * values[-1] + math.sqrt(0.75) * float(chance.standard_normal()))
        alarms += verdicts(values, floor=0.0).count("regressed")
    assert alarms <= 5  # in 2,000 nights


def delays(change: Sequence[float], histories: int = 40, before: int = 60) -> list[int]:
    """Return the number of nights after which a change, in standard deviations, is first reported; 0 if it is not."""
    chance = np.random.default_rng(1)
    result: list[int] = []
    for _ in range(histories):
        noise = chance.standard_normal(before + len(change))
        after = verdicts([*noise[:before], *(noise[before:] + change)], floor=0.0)[before:]
        result.append(after.index("regressed") + 1 if "regressed" in after else 0)
    return result


def test_a_step_of_two_standard_deviations_is_reported_within_ten_nights() -> None:
    assert sum(0 < delay <= 10 for delay in delays([-2.0] * 10)) >= 30  # of 40


def test_a_step_of_four_standard_deviations_is_reported_within_two_nights() -> None:
    assert sum(0 < delay <= 2 for delay in delays([-4.0] * 2)) >= 34  # of 40


def test_a_drift_of_a_tenth_of_a_standard_deviation_per_night_is_reported_within_forty_nights() -> None:
    assert all(delays([-0.1 * night for night in range(1, 41)], histories=20))


def test_a_reported_step_is_reported_once() -> None:
    chance = np.random.default_rng(1)
    values = [chance.standard_normal(100) for _ in range(20)]
    reports = [verdicts([*value[:60], *(value[60:] - 3)], floor=0.0)[60:90].count("regressed") for value in values]
    assert reports.count(1) >= 19


def test_an_assessment_has_the_numbers_of_its_baseline() -> None:
    assert assess_all([*NOISY, 20.0])[-1] == Assessment(
        verdict="regressed",
        first_bad_run="run010",
        last_good_run="run009",
        nights=9,
        level=pytest.approx(30.02),
        noise=pytest.approx(0.1903, abs=1e-4),
        floor=1.0,
    )
    assert assess_all([100.0] * 11, series=LATENCY, floor=0.05)[-1].floor == 5.0
