"""Every metric against its formula, written out in NumPy, and at the limits of float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from qnnsweep.conf import names
from qnnsweep.tasks.numerics.metrics import METRICS, gap, metric_values, snr_db, sums_of, top1
from qnnsweep.tasks.records import Gap, Quantization
from tests.numerics.judged import nearly

SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
STEP = 0.5

FORMULAS: dict[str, Callable[[Any, Any], Any]] = {
    "mse": lambda a, r: np.mean((a - r) ** 2),
    "mean_abs": lambda a, r: np.mean(np.abs(a - r)),
    "max_abs": lambda a, r: np.max(np.abs(a - r)),
    "snr_db": lambda a, r: 10 * np.log10(np.sum(r**2) / np.sum((a - r) ** 2)),
    "cosine": lambda a, r: np.sum(a * r) / (np.linalg.norm(a) * np.linalg.norm(r)),
    "l1": lambda a, r: np.sum(np.abs(a - r)),
    "nmse": lambda a, r: np.mean((a - r) ** 2) / np.mean(r**2),
    "relative_l1": lambda a, r: np.mean(np.abs(a - r)) / np.mean(np.abs(r)),
    "psnr_db": lambda a, r: 20 * np.log10(np.max(np.abs(r)) / np.sqrt(np.mean((a - r) ** 2))),
    "sqnr_db": lambda a, r: 20 * np.log10(np.linalg.norm(r) / np.linalg.norm(a - r)),
    "max_ulp": lambda a, r: np.max(np.abs(a - r) / (np.nextafter(np.abs(r), np.inf) - np.abs(r))),
    "mean_steps": lambda a, r: np.mean(np.abs(a - r) / STEP),
    "max_steps": lambda a, r: np.max(np.abs(a - r) / STEP),
}
RATIOS = ("snr_db", "cosine", "nmse", "relative_l1", "psnr_db", "sqnr_db")

REFERENCE = np.array([3.0, -4.0, 0.0, 0.0])
ACTUAL = np.array([3.0, -4.0, 1.0, -2.0])


def pairs(elements: st.SearchStrategy[float]) -> st.SearchStrategy[tuple[np.ndarray, np.ndarray]]:
    return SHAPES.flatmap(
        lambda shape: st.tuples(*(arrays.arrays(np.float64, shape, elements=elements) for _ in range(2)))
    )


ANY = pairs(st.floats(allow_nan=False, allow_infinity=False))
ORDINARY = pairs(st.integers(-1000, 1000).map(lambda whole: whole / 8))


def qparams(*scale: float, axis: int | None = None) -> Quantization:
    return Quantization(
        scale=scale, zero_point=(0,) * len(scale), axis=axis, quant_min=0, quant_max=255, dtype="uint8"
    )  # fmt: skip


def metric(name: str, actual: np.ndarray, reference: np.ndarray, qparams: Quantization | None = None) -> float | None:
    return metric_values((name,), actual, reference, qparams)[name]


def test_the_configuration_accepts_exactly_the_metrics_of_the_table() -> None:
    assert tuple(METRICS) == names.METRICS == tuple(FORMULAS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mse", 5 / 4),
        ("mean_abs", 3 / 4),
        ("max_abs", 2.0),
        ("snr_db", 10 * math.log10(25 / 5)),
        ("cosine", 25 / math.sqrt(30 * 25)),
        ("l1", 3.0),
        ("nmse", 5 / 25),
        ("relative_l1", 3 / 7),
        ("psnr_db", 20 * math.log10(4 / math.sqrt(5 / 4))),
        ("sqnr_db", 10 * math.log10(25 / 5)),
        ("mean_steps", 1.5),
        ("max_steps", 4.0),
    ],
)
def test_a_metric_of_a_small_example_has_the_value_computed_by_hand(name: str, value: float) -> None:
    assert metric(name, ACTUAL, REFERENCE, qparams(STEP)) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("name", FORMULAS)
@given(pair=ORDINARY)
def test_a_metric_is_its_formula_where_that_is_defined(name: str, pair: tuple[np.ndarray, np.ndarray]) -> None:
    value = metric(name, *pair, qparams(STEP))
    with np.errstate(all="ignore"):
        expected = FORMULAS[name](*pair) if pair[0].size else math.nan
    if math.isfinite(expected):
        assert value == pytest.approx(expected, rel=1e-9, abs=1e-9)
    else:
        assert value is None


@given(ORDINARY)
def test_the_gap_holds_the_metrics_of_its_field_names(pair: tuple[np.ndarray, np.ndarray]) -> None:
    assert asdict(gap(*pair)) == metric_values(asdict(Gap()), *pair)


@given(ANY)
def test_no_metric_of_finite_tensors_is_infinite_or_nan(pair: tuple[np.ndarray, np.ndarray]) -> None:
    values = [*metric_values(METRICS, *pair, qparams(STEP)).values(), *asdict(gap(*pair)).values()]
    assert all(value is None or math.isfinite(value) for value in values)


@given(ANY)
def test_a_tensor_has_no_error_against_itself(pair: tuple[np.ndarray, np.ndarray]) -> None:
    tensor, _ = pair
    gap_to_itself = gap(tensor, tensor)
    if not tensor.size:
        assert gap_to_itself == Gap()
    else:
        similarity = pytest.approx(1.0) if tensor.any() else None
        assert gap_to_itself == Gap(mse=0.0, mean_abs=0.0, max_abs=0.0, snr_db=None, cosine=similarity)


def test_equal_tensors_have_no_error_and_no_ratio_to_it() -> None:
    zero = ("l1", "nmse", "relative_l1", "max_ulp", "max_steps")
    values = metric_values((*zero, "psnr_db"), REFERENCE, REFERENCE, qparams(STEP))
    assert values == dict.fromkeys(zero, 0.0) | {"psnr_db": None}


@given(ORDINARY, st.integers(-900, 900), st.sampled_from(RATIOS))
def test_a_ratio_does_not_depend_on_the_unit(pair: tuple[np.ndarray, np.ndarray], exponent: int, name: str) -> None:
    actual, reference = pair
    expected = metric(name, actual, reference)
    scaled = metric(name, np.ldexp(actual, exponent), np.ldexp(reference, exponent))
    assert scaled == (None if expected is None else pytest.approx(expected, rel=1e-9, abs=1e-9))


def test_an_error_far_below_the_reference_is_not_lost() -> None:
    actual = REFERENCE + np.ldexp(1.0, -400) * np.array([0, 0, 1.0, 0])
    assert metric("nmse", actual, REFERENCE) == pytest.approx(math.ldexp(1 / 25, -800))
    assert metric("l1", np.ldexp(ACTUAL, 500), np.ldexp(REFERENCE, 500)) == math.ldexp(3.0, 500)


@pytest.mark.parametrize("name", RATIOS)
def test_nothing_is_relative_to_a_reference_of_zeros(name: str) -> None:
    assert metric(name, np.ones(3), np.zeros(3)) is None


def test_zeros_have_no_cosine() -> None:
    assert metric("cosine", np.zeros(3), np.ones(3)) is None


def test_the_snr_alone_is_that_of_the_table() -> None:
    assert snr_db(ACTUAL, REFERENCE) == metric("snr_db", ACTUAL, REFERENCE)


def test_no_metric_is_defined_without_elements() -> None:
    empty = np.zeros((0, 3), np.float32)
    assert metric_values(METRICS, empty, empty, qparams(STEP)) == dict.fromkeys(METRICS)


def test_squares_beyond_float32_do_not_overflow() -> None:
    actual = np.full(1000, 3e38, np.float32)
    assert metric("mse", actual, np.zeros_like(actual)) == pytest.approx(float(np.float32(3e38)) ** 2)


def test_half_precision_is_summed_in_double() -> None:
    actual = np.full(10_000, 100.0, np.float16)
    assert metric("mean_abs", actual, np.zeros_like(actual)) == 100.0


def test_a_difference_beyond_float64_is_not_defined() -> None:
    most = np.finfo(np.float64).max
    assert gap(np.array([most]), np.array([-most])) == Gap(cosine=-1.0)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64"])
def test_unsigned_and_boolean_differences_do_not_wrap(dtype: str) -> None:
    assert metric("max_abs", np.array([0, 1], dtype), np.array([1, 0], dtype)) == 1.0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [1.0, -0.75, 1024.0, 0.0])
def test_the_next_number_is_one_unit_in_the_last_place_away(dtype: type, value: float) -> None:
    reference = np.array([1.5, value], dtype)
    away = np.array([np.inf, -np.inf if value < 0 else np.inf], dtype)
    assert metric("max_ulp", np.nextafter(reference, away), reference) == 1.0


def test_integers_have_no_unit_in_the_last_place() -> None:
    assert metric("max_ulp", np.array([1]), np.array([2])) is None


@pytest.mark.parametrize("name", ["mean_steps", "max_steps"])
def test_there_are_no_steps_without_qparams(name: str) -> None:
    assert metric(name, ACTUAL, REFERENCE) is None


@pytest.mark.parametrize("axis", [1, -2])
def test_each_channel_has_its_own_steps(axis: int) -> None:
    error, quantization = np.ones((2, 3, 4)), qparams(1.0, 0.5, 0.25, axis=axis)
    steps = metric_values(("mean_steps", "max_steps"), error, np.zeros((2, 3, 4)), quantization)
    assert steps == {"mean_steps": pytest.approx(7 / 3), "max_steps": 4.0}


def test_tensors_of_two_shapes_have_no_gap() -> None:
    with pytest.raises(ValueError, match=r"\(2,\) and \(1, 2\)"):
        gap(np.zeros(2), np.zeros((1, 2)))


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(KeyError, match="mae"):
        metric_values(("mae",), ACTUAL, REFERENCE)


@pytest.mark.parametrize(
    ("values", "index"),
    [
        (np.array([[0.0, 3.0, 3.0]]), 1),
        (np.array([[1, 2], [9, 4]], np.uint8), 2),
        (np.array([np.inf, 1.0]), 0),
        (np.array([np.nan, 1.0]), None),
        (np.array(7.0), None),
        (np.array([7.0]), None),
        (np.zeros((0, 4)), None),
    ],
)
def test_top1_is_the_first_of_the_largest_elements_or_none(values: np.ndarray, index: int | None) -> None:
    assert top1(values) == index


@given(
    tensors=arrays.arrays(
        np.float32, st.tuples(st.just(3), st.integers(1, 60)), elements=st.floats(-100, 100, width=32)
    ),
    odd=st.sampled_from([0.0, np.nan, np.inf]),
)
def test_elements_that_do_not_count_change_no_metric(tensors: np.ndarray, odd: float) -> None:
    actual, reference, chance = tensors
    counted = chance > 0
    alone = sums_of(actual[counted], reference[counted])
    masked = sums_of(np.where(counted, actual, np.float32(odd)), reference, counted=counted)
    assert asdict(masked.gap) == nearly(alone.gap)
    assert (masked.elements, masked.actual_sum) == (alone.elements, pytest.approx(alone.actual_sum, abs=1e-9))
