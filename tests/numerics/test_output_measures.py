"""The measures of a final output beside its SNR: neither an offset nor a large part hides an error from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qnnsweep.tasks.numerics.metrics import snr_db
from qnnsweep.tasks.numerics.output_measures import Measures, channel_means, measures

Array = NDArray[Any]


def characters(seed: int) -> Array:
    """Return logarithms of probabilities, [1, steps, characters], which are about -3.6 everywhere."""
    return (0.05 * np.random.default_rng(seed).normal(size=(1, 30, 37)) - 3.6).astype(np.float32)


def test_an_offset_is_no_signal() -> None:
    eager = [characters(seed) for seed in range(3)]
    device = eager[0] + 0.02 * characters(9) + 0.072
    measured = measures(device, eager[0], channel_means(eager))
    assert snr_db(device, eager[0]) == pytest.approx(71.1, abs=0.5)
    assert measured.centred_snr_db == pytest.approx(34.0, abs=0.5)
    assert measures(eager[0], eager[0], channel_means(eager)) == Measures(rows=30, rows_same_top1=30)


def test_the_channels_are_along_the_axis_whose_means_explain_most() -> None:
    levels = np.arange(6.0)[:, None, None]
    images = [np.random.default_rng(seed).normal(size=(1, 6, 8, 8)) + 10 * levels for seed in range(2)]
    means = channel_means(images)
    assert means is not None
    assert means.shape == (1, 6, 1, 1)
    assert np.abs(means - 10 * levels).max() < 0.5
    scores = [np.array([[1.0, 5.0]]), np.array([[3.0, 7.0]])]
    assert np.array_equal(np.asarray(channel_means(scores)), [[2.0, 6.0]])
    assert channel_means(scores[:1]) is None
    assert channel_means([np.array([[1, 2]])]) is None


def test_the_worst_row_is_not_hidden_by_the_others() -> None:
    eager = np.concatenate([np.full((1, 4, 50), 300.0), np.full((1, 8, 50), 0.5)], 1).astype(np.float32)
    device = np.rint(eager / 2.4) * 2.4
    assert measures(device, eager, None).row_snr_db == 0.0
    assert measures(eager * 0, eager * 0, None).row_snr_db is None


def test_every_row_of_a_batch_has_a_largest_element() -> None:
    eager = np.array([[1.0, 2.0, 3.0], [9.0, 0.0, 1.0], [0.0, 4.0, 1.0]])
    device = np.array([[1.0, 2.5, 3.0], [1.0, 9.0, 0.0], [0.0, 4.0, 1.0]])
    measured = measures(device, eager, None)
    assert (measured.rows, measured.rows_same_top1) == (3, 2)
    assert measures(eager[:, :1], eager[:, :1], None) == Measures()


def test_integers_and_booleans_have_a_share_of_equal_elements_only() -> None:
    indices = np.array([[6, 4, 11, 10]])
    assert measures(np.array([[6, 4, 10, 11]]), indices, None) == Measures(equal_elements=0.5)
    assert measures(indices > 4, indices > 4, None) == Measures(equal_elements=1.0)
    assert measures(indices[:, :2], indices, None) == Measures()
    assert measures(np.full((1, 4), np.nan), np.ones((1, 4)), None) == Measures()
