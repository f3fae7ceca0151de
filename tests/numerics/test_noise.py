"""The noise of final outputs that have no SNR: equal outputs, NaNs and zeros."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.numerics.noise import in_db, lowest_snr, noise_by_sample, noise_to_signal
from qnnsweep.tasks.numerics.operators import compare_values
from qnnsweep.tasks.records import OutputComparison
from tests.sample_records import ANSWER

ONES, ZEROS = np.ones(4), np.zeros(4)
NANS = np.full(4, np.nan)
ONE_NAN = np.array([1, 1, 1, np.nan])


@pytest.mark.parametrize(
    ("actual", "reference", "difference", "snr_db"),
    [
        (ONES, ONES, "none", None),
        (ZEROS, ZEROS, "none", None),
        (NANS, NANS, "none", None),
        (ONE_NAN, ONE_NAN, "none", None),
        (ONES * 1.1, ONES, "finite", pytest.approx(20.0)),
        (ZEROS, ONES, "finite", 0.0),
        (ONES * 100, ZEROS, "infinite", None),
        (ONES * 1e-30, ZEROS, "infinite", None),
        (NANS, ONES, "infinite", None),
        (ONES, NANS, "infinite", None),
        (ONE_NAN, ONES, "infinite", None),
        (ONES * np.inf, -ONES * np.inf, "infinite", None),
        (np.ones(3), ONES, "infinite", None),
        (np.empty(0), np.empty(0), "none", None),
        (ONES * 1e307, -ONES * 1e307, "finite", pytest.approx(-6.0206, abs=1e-4)),
        (ONES * 1e308, -ONES * 1e308, "infinite", None),  # float64 cannot hold the difference
    ],
)
def test_two_outputs_differ_by_nothing_by_finite_noise_or_by_infinite_noise(
    actual: np.ndarray, reference: np.ndarray, difference: str, snr_db: float | None
) -> None:
    compared = compare_values(actual, reference)
    assert lowest_snr([(compared.status, compared.gap.snr_db)]) == (difference, snr_db)


def test_the_lowest_snr_is_that_of_the_outputs_that_differ() -> None:
    exact, noisy, noisier = ("exact", None), ("compared", 30.0), ("compared", -3.5)
    assert lowest_snr([]) == (None, None)
    assert lowest_snr([exact, exact]) == ("none", None)
    assert lowest_snr([noisy, exact, noisier]) == ("finite", -3.5)
    assert lowest_snr([noisy, ("compared", None), noisier]) == ("infinite", None)
    assert lowest_snr([exact, ("nonfinite_differs", None)]) == ("infinite", None)


def test_the_noise_of_a_sample_is_that_of_its_worst_output() -> None:
    def row(sample: int, status: str, snr_db: float | None) -> OutputComparison:
        return replace(ANSWER, sample=sample, status=status, gap=replace(ANSWER.gap, snr_db=snr_db))

    rows = [row(0, "compared", 20.0), row(0, "compared", 10.0), row(1, "exact", None), row(2, "exact", None)]
    assert [*noise_by_sample(rows).values()] == pytest.approx([0.1, 0.0, 0.0])
    noise = noise_by_sample([*rows, row(2, "nonfinite_differs", None)])
    assert [*noise.values()] == pytest.approx([0.1, 0.0, math.inf])
    assert noise_by_sample([]) == {}


@given(st.floats(-6000, 6000))
def test_the_noise_of_every_snr_is_finite_and_its_snr_is_the_same(snr_db: float) -> None:
    noise = noise_to_signal("compared", snr_db)
    assert math.isfinite(noise)
    if -3000 < snr_db < 3000:
        assert in_db(noise) == pytest.approx(snr_db, abs=1e-9)


def test_no_noise_and_infinite_noise_have_no_snr() -> None:
    assert (in_db(0.0), in_db(math.inf)) == (None, None)
