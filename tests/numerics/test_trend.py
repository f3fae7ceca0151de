"""The verdict on a night, from those before it."""

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
# Whole numbers: what is added to them or multiplied with them is exact.
VALUES = st.lists(st.none() | st.integers(-1_000, 1_000).map(float), min_size=1, max_size=45)


def followed(
    values: Sequence[float | None],
    series: Series = SNR,
    floor: float = 1.0,
    config: TrendConfig = CONFIG,
    failed: Sequence[int] = (),
) -> list[Assessment]:
    """What is told night by night, each night knowing what was told before."""
    nights: list[Night] = []
    told: list[Assessment] = []
    for number, value in enumerate(values):
        night = Night(run=f"run{number:03}", value=value, passed=number not in failed)
        told.append(assess(nights, night, series, floor, config))
        nights.append(replace(night, verdict=told[-1].verdict, first_bad_run=told[-1].first_bad_run))
    return told


def verdicts(values: Sequence[float | None], **how: object) -> list[str]:
    return [each.verdict for each in followed(values, **how)]  # type: ignore[arg-type]


def test_every_series_has_a_floor_and_every_floor_a_series() -> None:
    assert {each.name for each in fields(FloorConfig)} == {*SERIES, *OPERATOR_SERIES}


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
def test_less_is_better_is_more_is_better_upside_down(values: list[float | None]) -> None:
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
def test_the_order_in_which_a_short_baseline_came_does_not_matter(values: list[float], value: int) -> None:
    def told(values: Sequence[float]) -> tuple[object, ...]:
        nights = [Night(run=str(number), value=each, passed=True) for number, each in enumerate(values)]
        answer = assess(nights, Night(run="tonight", value=float(value), passed=True), SNR, 1.0, CONFIG)
        return answer.verdict, answer.nights, answer.median, answer.mad

    assert told(values) == told(sorted(values))


@given(VALUES)
def test_what_is_bad_names_its_first_bad_run_and_nothing_else_does(values: list[float | None]) -> None:
    told = followed(values)
    for number, each in enumerate(told):
        assert (each.first_bad_run is not None) == (each.verdict in BAD)
        if each.verdict == "regressed":
            assert each.first_bad_run == f"run{number:03}"
        if each.verdict == "still_bad":
            first = int(str(each.first_bad_run).removeprefix("run"))
            assert told[first].verdict == "regressed"


NOISY = [30.0, 30.2, 29.9, 30.1, 29.8, 30.0, 30.3, 29.7, 30.1, 29.9]


def test_a_step_is_told_once_and_then_as_still_bad_until_it_has_lasted_as_long_as_a_baseline() -> None:
    told = verdicts([30.0] * 10 + [25.0] * 40)
    assert told == ["new", *["steady"] * 9, "regressed", *["still_bad"] * 29, *["steady"] * 10]


def test_coming_back_is_no_regression_and_no_improvement() -> None:
    assert verdicts([30.0] * 10 + [25.0, 30.0, 30.0])[-3:] == ["regressed", "steady", "steady"]
    assert verdicts([30.0] * 10 + [35.0, 30.0, 30.0])[-3:] == ["improved", "steady", "steady"]


def test_a_spike_is_not_in_the_baseline() -> None:
    told = followed([*NOISY, 5.0, 30.0, 30.0])
    assert (told[-1].nights, told[-1].median) == (11, 30.0)


def test_what_comes_and_goes_is_one_event() -> None:
    assert verdicts([30.0] * 5 + [20.0, 30.0, 20.0, 30.0, 20.0])[-5:] == [
        "regressed", "steady", "still_bad", "steady", "still_bad",
    ]  # fmt: skip


def test_what_gets_worse_still_is_told_again() -> None:
    told = followed([30.0] * 10 + [25.0, 25.0, 20.0, 20.0])
    assert [each.verdict for each in told[-4:]] == ["regressed", "still_bad", "regressed", "still_bad"]
    assert [(each.first_bad_run, each.last_good_run) for each in told[-4:]] == [
        ("run010", "run009"), ("run010", "run009"), ("run012", "run011"), ("run012", "run011"),
    ]  # fmt: skip


def test_a_value_about_the_limit_does_not_come_and_go_with_its_noise() -> None:
    assert verdicts([30.0] * 10 + [28.9, 29.1, 28.9, 29.1])[-4:] == ["regressed", *["still_bad"] * 3]


def test_a_better_level_is_the_baseline_after_three_nights_so_that_losing_it_is_a_regression() -> None:
    told = verdicts([20.0] * 10 + [30.0] * 5 + [20.0])
    assert told[10:] == [*["improved"] * 3, "steady", "steady", "regressed"]


def test_a_slow_drift_is_found_when_it_has_become_larger_than_the_floor() -> None:
    values = [30.0] * 20 + [30.0 - 0.0625 * night for night in range(1, 25)]
    told = verdicts(values)
    assert told.index("regressed") == 20 + 17  # 1.0625 dB less, by the median of three: a night later
    assert told.count("regressed") == 1


def test_an_improvement_that_drifts_is_no_regression() -> None:
    assert not {*BAD} & {*verdicts([30.0 + 0.0625 * night for night in range(70)])}


def test_missing_nights_are_stepped_over() -> None:
    assert verdicts([30.0, None, 30.0, None, 20.0, None, 20.0]) == [
        "new", "undefined", "steady", "undefined", "regressed", "undefined", "still_bad",
    ]  # fmt: skip


def test_a_night_that_failed_its_own_gate_is_no_baseline() -> None:
    assert verdicts([3.0, 3.0, 30.0, 3.0], failed=[0, 1]) == ["new", "no_baseline", "no_baseline", "regressed"]
    assert verdicts([30.0] + [3.0] * 45, failed=range(1, 46))[1:] == ["regressed", *["still_bad"] * 44]


def test_a_noisy_series_waits_for_a_baseline_and_must_be_beyond_its_noise_and_the_floor() -> None:
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


def test_what_is_told_says_what_it_was_held_against() -> None:
    assert followed([*NOISY, 20.0])[-1] == Assessment(
        verdict="regressed",
        first_bad_run="run010",
        last_good_run="run009",
        nights=10,
        median=30.0,
        mad=pytest.approx(0.1),
        floor=1.0,
    )
    assert followed([100.0] * 11, series=LATENCY, floor=0.05)[-1].floor == 5.0
