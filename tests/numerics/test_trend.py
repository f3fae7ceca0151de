"""The verdict on a night, from the nights before it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.schema import FloorConfig, TrendConfig
from tasks.numerics.trend import BAD, OPERATOR_SERIES, SERIES, Assessment, Night, Series, assess, beyond

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
) -> list[Assessment]:
    """Return the assessment of every night, each with the verdicts of the nights before it."""
    nights: list[Night] = []
    assessments: list[Assessment] = []
    for number, value in enumerate(values):
        night = Night(run=f"run{number:03}", value=value, passed=number not in failed)
        assessments.append(assess(nights, night, series, floor, config))
        nights.append(replace(night, verdict=assessments[-1].verdict, first_bad_run=assessments[-1].first_bad_run))
    return assessments


def verdicts(values: Sequence[float | None], **how: object) -> list[str]:
    return [night.verdict for night in assess_all(values, **how)]  # type: ignore[arg-type]


def test_every_series_has_a_floor_and_every_floor_a_series() -> None:
    assert {field.name for field in fields(FloorConfig)} == {*SERIES, *OPERATOR_SERIES}


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


@given(st.permutations([float(value) for value in range(10)]), st.integers(-20, 20))
def test_the_order_of_the_nights_of_a_short_baseline_does_not_matter(values: list[float], value: int) -> None:
    def summary(values: Sequence[float]) -> tuple[object, ...]:
        nights = [Night(run=str(number), value=value, passed=True) for number, value in enumerate(values)]
        tonight = assess(nights, Night(run="tonight", value=float(value), passed=True), SNR, 1.0, CONFIG)
        return tonight.verdict, tonight.nights, tonight.median, tonight.mad

    assert summary(values) == summary(sorted(values))


@given(VALUES)
def test_exactly_the_bad_verdicts_name_their_first_bad_run(values: list[float | None]) -> None:
    nights = assess_all(values)
    for number, night in enumerate(nights):
        assert (night.first_bad_run is not None) == (night.verdict in BAD)
        if night.verdict == "regressed":
            assert night.first_bad_run == f"run{number:03}"
        if night.verdict == "still_bad":
            first = int(str(night.first_bad_run).removeprefix("run"))
            assert nights[first].verdict == "regressed"


NOISY = [30.0, 30.2, 29.9, 30.1, 29.8, 30.0, 30.3, 29.7, 30.1, 29.9]


def test_a_step_is_one_regression_and_still_bad_until_it_has_lasted_as_long_as_a_baseline() -> None:
    assert verdicts([30.0] * 10 + [25.0] * 40) == [
        "new",
        *["steady"] * 9,
        "regressed",
        *["still_bad"] * 29,
        *["steady"] * 10,
    ]


def test_a_return_to_the_baseline_is_no_regression_and_no_improvement() -> None:
    assert verdicts([30.0] * 10 + [25.0, 30.0, 30.0])[-3:] == ["regressed", "steady", "steady"]
    assert verdicts([30.0] * 10 + [35.0, 30.0, 30.0])[-3:] == ["improved", "steady", "steady"]


def test_a_spike_is_not_in_the_baseline() -> None:
    tonight = assess_all([*NOISY, 5.0, 30.0, 30.0])[-1]
    assert (tonight.nights, tonight.median) == (11, 30.0)


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
    assert verdicts([30.0, None, 30.0, None, 20.0, None, 20.0]) == [
        "new", "undefined", "steady", "undefined", "regressed", "undefined", "still_bad",
    ]  # fmt: skip


def test_a_night_that_failed_its_own_gate_is_not_in_the_baseline() -> None:
    assert verdicts([3.0, 3.0, 30.0, 3.0], failed=[0, 1]) == ["new", "no_baseline", "no_baseline", "regressed"]
    assert verdicts([30.0] + [3.0] * 45, failed=range(1, 46))[1:] == ["regressed", *["still_bad"] * 44]


def test_a_noisy_series_needs_several_nights_and_a_change_beyond_its_noise_and_the_floor() -> None:
    values = [10.0 + value - 30.0 for value in NOISY]
    assert verdicts([*values, 10.0], series=LATENCY, floor=0.05) == ["new", *["no_baseline"] * 9, "steady"]
    mad = statistics.median(abs(value - statistics.median(values)) for value in values)
    noise = 4 * 1.4826 * mad * 10 / 9.2 * math.sqrt(1 + math.pi / 20)
    assert beyond(0.5, mad, 10, CONFIG) == pytest.approx(noise)
    for more, floor, expected in (
        (noise + 0.01, 0.05, "regressed"),
        (noise - 0.01, 0.05, "steady"),
        (1.99, 0.2, "steady"),
        (2.05, 0.2, "regressed"),
    ):
        assert verdicts([*values, statistics.median(values) + more], series=LATENCY, floor=floor)[-1] == expected


def test_an_assessment_has_the_numbers_of_its_baseline() -> None:
    assert assess_all([*NOISY, 20.0])[-1] == Assessment(
        verdict="regressed",
        first_bad_run="run010",
        last_good_run="run009",
        nights=10,
        median=30.0,
        mad=pytest.approx(0.1),
        floor=1.0,
    )
    assert assess_all([100.0] * 11, series=LATENCY, floor=0.05)[-1].floor == 5.0
