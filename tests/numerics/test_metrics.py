from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tasks.findings import Gap
from tasks.numerics.metrics import METRICS, cosine, gap, max_abs, mean_abs, mse, snr_db, top1

SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)


def pairs(elements: st.SearchStrategy[float]) -> st.SearchStrategy[tuple[np.ndarray, np.ndarray]]:
    return SHAPES.flatmap(
        lambda shape: st.tuples(*(hnp.arrays(np.float64, shape, elements=elements) for _ in range(2)))
    )


ANY = pairs(st.floats(allow_nan=False, allow_infinity=False))
ORDINARY = pairs(st.integers(-1000, 1000).map(lambda whole: whole / 8))


def test_the_figures_of_a_small_example() -> None:
    assert gap(np.array([3.0, 4.0]), np.array([3.0, 0.0])) == Gap(
        mse=8.0, mean_abs=2.0, max_abs=4.0, snr_db=pytest.approx(10 * math.log10(9 / 16)), cosine=pytest.approx(0.6)
    )


@given(ORDINARY)
def test_each_metric_is_its_textbook_formula(pair: tuple[np.ndarray, np.ndarray]) -> None:
    actual, reference = pair
    error = actual - reference
    if not error.size:
        assert gap(actual, reference) == Gap()
        return
    signal, noise = (reference**2).sum(), (error**2).sum()
    norms = np.linalg.norm(actual) * np.linalg.norm(reference)
    assert gap(actual, reference) == Gap(
        mse=pytest.approx(np.mean(error**2)),
        mean_abs=pytest.approx(np.mean(np.abs(error))),
        max_abs=np.abs(error).max(),
        snr_db=pytest.approx(10 * np.log10(signal / noise), abs=1e-9) if signal and noise else None,
        cosine=pytest.approx((actual * reference).sum() / norms, abs=1e-12) if norms else None,
    )


@given(ANY)
def test_the_table_and_the_gap_agree_to_the_last_bit(pair: tuple[np.ndarray, np.ndarray]) -> None:
    assert gap(*pair) == Gap(**{name: metric(*pair) for name, metric in METRICS.items()})


@given(ANY)
def test_no_finite_tensors_give_an_infinity_or_a_nan(pair: tuple[np.ndarray, np.ndarray]) -> None:
    values = [metric(*pair) for metric in METRICS.values()]
    assert all(value is None or math.isfinite(value) for value in values)


@given(ANY)
def test_a_tensor_has_no_error_against_itself(pair: tuple[np.ndarray, np.ndarray]) -> None:
    tensor, _ = pair
    itself = gap(tensor, tensor)
    if not tensor.size:
        assert itself == Gap()
    else:
        similarity = pytest.approx(1.0) if tensor.any() else None
        assert itself == Gap(mse=0.0, mean_abs=0.0, max_abs=0.0, snr_db=None, cosine=similarity)


@given(ORDINARY, st.integers(-900, 900))
def test_ratios_do_not_depend_on_the_unit(pair: tuple[np.ndarray, np.ndarray], exponent: int) -> None:
    actual, reference = pair
    for ratio in (snr_db, cosine):
        expected = ratio(actual, reference)
        scaled = ratio(np.ldexp(actual, exponent), np.ldexp(reference, exponent))
        assert scaled == (None if expected is None else pytest.approx(expected, rel=1e-9, abs=1e-9))


def test_a_zero_reference_has_no_snr_and_no_cosine() -> None:
    zeros, ones = np.zeros(3), np.ones(3)
    assert (snr_db(ones, zeros), cosine(ones, zeros), cosine(zeros, ones)) == (None, None, None)


def test_squares_beyond_float32_are_no_infinities() -> None:
    actual = np.full(1000, 3e38, np.float32)
    assert mse(actual, np.zeros_like(actual)) == pytest.approx(float(np.float32(3e38)) ** 2)


def test_half_precision_is_summed_in_double() -> None:
    actual = np.full(10_000, 100.0, np.float16)
    assert mean_abs(actual, np.zeros_like(actual)) == 100.0


def test_a_difference_beyond_float64_is_not_defined() -> None:
    most = np.finfo(np.float64).max
    assert gap(np.array([most]), np.array([-most])) == Gap(cosine=-1.0)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64"])
def test_unsigned_and_boolean_differences_do_not_wrap(dtype: str) -> None:
    assert max_abs(np.array([0, 1], dtype), np.array([1, 0], dtype)) == 1.0


def test_tensors_of_two_shapes_have_no_gap() -> None:
    with pytest.raises(ValueError, match=r"\(2,\) and \(1, 2\)"):
        gap(np.zeros(2), np.zeros((1, 2)))


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
def test_top1_is_the_first_of_the_largest_or_nothing(values: np.ndarray, index: int | None) -> None:
    assert top1(values) == index
