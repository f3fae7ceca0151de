"""The prediction of a gain from a trial, and the number of a cell that a target is about."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.repair.prediction import LOWEST, Statistic, gain_db, predicted_noise

NOISE = st.floats(1e-9, 1e3)


def test_a_device_that_is_close_to_its_design_stays_as_close() -> None:
    assert predicted_noise([1e-3, 2e-3], [1e-3, 1e-3], [1e-4, 1e-4]) == pytest.approx([1e-4, 2e-4])


def test_a_device_with_errors_of_its_own_keeps_them() -> None:
    (predicted,) = predicted_noise([1e-1], [1e-3], [1e-5])
    assert predicted == pytest.approx(0.1 - 1e-3 + 1e-5)
    assert gain_db(LOWEST([1e-1]), LOWEST([predicted])) < 0.1, "a finer grid does not mend them"


def test_a_change_for_errors_of_the_device_is_assumed_to_remove_its_part_of_them_if_it_will_be_measured() -> None:
    assert predicted_noise([1e-1], [1e-3], [2e-3], 0.75) == pytest.approx([2e-3 + (0.1 - 1e-3) / 4])
    assert predicted_noise([2e-3], [1e-3], [1e-3], 0.75) == pytest.approx([1.25e-3])


@given(device=NOISE, design=NOISE, changed=NOISE, better=st.floats(0.0, 1.0))
def test_less_noise_of_the_design_is_never_predicted_to_be_more_on_the_device(
    device: float, design: float, changed: float, better: float
) -> None:
    (before,), (after,) = (predicted_noise([device], [design], [noise]) for noise in (changed, changed * better))
    assert after <= before


@given(st.floats(1e-9, 1e3), st.floats(1e-9, 1e3))
def test_a_change_without_an_effect_is_predicted_to_have_none(device: float, design: float) -> None:
    assert predicted_noise([device], [design], [design]) == pytest.approx([device])


def test_infinite_noise_is_predicted_where_the_changed_program_has_it() -> None:
    assert predicted_noise([math.inf, 1.0], [1.0, 1.0], [0.5, math.inf]) == [0.5, math.inf]


def test_the_statistics_of_samples() -> None:
    noise = [1e-1, 1e-2, 1e-3, 1e-4]
    assert LOWEST(noise) == pytest.approx(10.0)
    assert Statistic(0.25)(noise) == pytest.approx(20.0), "one of the four samples may have less"
    assert Statistic(None)(noise) == pytest.approx(-10 * math.log10(0.1111 / 4))
    assert (LOWEST([0.0]), LOWEST([math.inf, 0.0])) == (math.inf, -math.inf)
    assert Statistic(1.0)(noise) == pytest.approx(40.0), "the best sample"


def test_a_gain_to_or_from_infinity_is_finite() -> None:
    assert gain_db(20.0, math.inf) == pytest.approx(100.0)
    assert gain_db(-math.inf, 20.0) == pytest.approx(140.0)
    assert gain_db(math.inf, math.inf) == 0.0
