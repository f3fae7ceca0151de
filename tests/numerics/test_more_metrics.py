"""The metrics that can be asked for besides those of every gap."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from conf.names import METRICS as CAN_BE_ASKED
from tasks.numerics.metrics import METRICS, MORE_METRICS, l1, max_ulp, more, nmse, psnr_db, relative_l1, steps
from tasks.records import Quantization

REFERENCE = np.array([3.0, -4.0, 0.0, 0.0])
ACTUAL = np.array([3.0, -4.0, 1.0, -2.0])


def grid(*scale: float, axis: int | None = None) -> Quantization:
    return Quantization(
        scale=scale, zero_point=(0,) * len(scale), axis=axis, quant_min=0, quant_max=255, dtype="uint8"
    )  # fmt: skip


def test_what_can_be_asked_for_is_what_there_is() -> None:
    assert set(CAN_BE_ASKED) == MORE_METRICS


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        (l1, 3.0),
        (nmse, 5 / 25),
        (relative_l1, 3 / 7),
        (psnr_db, 20 * math.log10(4 / math.sqrt(5 / 4))),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_metric_is_its_formula(metric, value: float) -> None:
    assert metric(ACTUAL, REFERENCE) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("metric", [nmse, relative_l1, psnr_db])
def test_nothing_is_relative_to_a_reference_of_zeros(metric) -> None:
    assert metric(np.ones(3), np.zeros(3)) is None


@pytest.mark.parametrize("power", [-600, 500])
def test_what_is_relative_does_not_change_with_the_unit(power: int) -> None:
    far_actual, far_reference = (np.ldexp(each, power) for each in (ACTUAL, REFERENCE))
    for metric in (nmse, relative_l1, psnr_db):
        assert metric(far_actual, far_reference) == pytest.approx(metric(ACTUAL, REFERENCE), rel=1e-12)
    small = REFERENCE + np.ldexp(1.0, -400) * np.array([0, 0, 1.0, 0])  # an error far below the reference
    assert nmse(small, REFERENCE) == pytest.approx(math.ldexp(1 / 25, -800))
    assert l1(far_actual, far_reference) == math.ldexp(3.0, power)


def test_without_elements_nothing_is_defined() -> None:
    empty = np.zeros((0, 3), np.float32)
    assert more(sorted(MORE_METRICS), empty, empty, grid(0.5)) == dict.fromkeys(sorted(MORE_METRICS))


def test_equal_tensors_have_no_error_and_no_ratio_to_it() -> None:
    found = more(("l1", "nmse", "relative_l1", "max_ulp", "max_steps", "psnr_db"), REFERENCE, REFERENCE, grid(0.5))
    assert found == dict.fromkeys(("l1", "nmse", "relative_l1", "max_ulp", "max_steps"), 0.0) | {"psnr_db": None}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [1.0, -0.75, 1024.0, 0.0])
def test_a_neighbour_is_one_unit_in_the_last_place_away(dtype: type, value: float) -> None:
    reference = np.array([1.5, value], dtype)
    away = np.array([np.inf, -np.inf if value < 0 else np.inf], dtype)
    assert max_ulp(np.nextafter(reference, away), reference) == 1.0


def test_whole_numbers_have_no_last_place() -> None:
    assert max_ulp(np.array([1]), np.array([2])) is None


def test_steps_are_the_grid_s() -> None:
    assert steps(ACTUAL, REFERENCE, grid(0.5)) == (1.5, 4.0)
    assert steps(ACTUAL, REFERENCE, None) == (None, None)


@pytest.mark.parametrize("axis", [1, -2])
def test_steps_of_a_channel_are_its_own(axis: int) -> None:
    error = np.ones((2, 3, 4))
    assert steps(error, np.zeros((2, 3, 4)), grid(1.0, 0.5, 0.25, axis=axis)) == (pytest.approx(7 / 3), 4.0)


@given(
    arrays.arrays(np.float32, (2, 5), elements=st.floats(-(2**100), 2**100, width=32)),
    arrays.arrays(np.float32, (2, 5), elements=st.floats(-(2**100), 2**100, width=32)),
)
def test_asked_together_they_say_what_they_say_alone(actual: np.ndarray, reference: np.ndarray) -> None:
    found = more(METRICS, actual, reference)
    assert found == {name: metric(actual, reference) for name, metric in METRICS.items()}
    assert more(("sqnr_db",), actual, reference)["sqnr_db"] == found["snr_db"]
    assert more(("l1",), actual, reference)["l1"] == l1(actual, reference)


@given(
    arrays.arrays(np.float64, 6, elements=st.floats(allow_nan=False, allow_infinity=False)),
    arrays.arrays(np.float64, 6, elements=st.floats(allow_nan=False, allow_infinity=False)),
)
def test_no_metric_is_ever_infinite(actual: np.ndarray, reference: np.ndarray) -> None:
    found = more(sorted(MORE_METRICS), actual, reference, grid(0.5))
    assert all(value is None or math.isfinite(value) for value in found.values())


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(KeyError, match="mae"):
        more(("mae",), ACTUAL, REFERENCE)
