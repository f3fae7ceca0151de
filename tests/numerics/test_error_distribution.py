"""The distribution of an error: its histogram, its channels, and its heat map."""

from __future__ import annotations

import numpy as np
import pytest

from qnnsweep.tasks.numerics.error_distribution import error_distribution
from qnnsweep.tasks.records import ErrorDistribution


def test_the_bins_are_symmetric_and_the_middle_bin_has_the_errors_around_zero() -> None:
    error = np.array([0.0, 0.0, 1.0, -2.0, 2.0, 0.01], np.float32)
    histogram = error_distribution(error).histogram
    assert len(histogram) == 33
    assert {number: count for number, count in enumerate(histogram) if count} == {0: 1, 16: 3, 24: 1, 32: 1}


def test_a_tensor_without_an_error_has_all_elements_in_the_middle_bin() -> None:
    distribution = error_distribution(np.zeros((2, 3), np.float32))
    assert (distribution.largest_error, distribution.histogram[16], sum(distribution.histogram)) == (0.0, 6, 6)


@pytest.mark.parametrize(
    ("shape", "axis", "heat"),
    [
        ((1, 4, 8, 8), 1, (8, 8)),
        ((1, 8, 8, 4), 3, (8, 8)),  # the channels are last
        ((1, 2, 3, 5), 1, (3, 5)),
        ((1, 16, 1, 1), 1, None),
        ((1, 128, 384), 2, None),
        ((5, 3), 1, None),
        ((3,), 0, None),
        ((), None, None),
    ],
)
def test_a_tensor_of_two_spatial_axes_has_a_heat_map(
    shape: tuple[int, ...], axis: int | None, heat: tuple[int, int] | None
) -> None:
    distribution = error_distribution(np.ones(shape, np.float32))
    size = None if distribution.heat_rows is None else (distribution.heat_rows, distribution.heat_columns)
    assert (distribution.channel_axis, size) == (axis, heat)
    assert distribution.channels == (None if axis is None else shape[axis])
    assert set(distribution.channel_errors) | set(distribution.heat) <= {1.0}


def test_the_wrong_channel_and_the_wrong_place_have_the_largest_errors() -> None:
    error = np.zeros((1, 3, 4, 4), np.float32)
    error[0, 1, 3, 2] = -8.0
    assert error_distribution(error) == ErrorDistribution(
        largest_error=8.0,
        histogram=(1, *(0,) * 15, 47, *(0,) * 16),
        channel_axis=1,
        channels=3,
        channel_errors=(0.0, 2.0, 0.0),
        heat_rows=4,
        heat_columns=4,
        heat=(*(0.0,) * 14, pytest.approx(8 / np.sqrt(3)), 0.0),
    )


def test_many_channels_and_many_places_are_joined_with_their_neighbours() -> None:
    error = np.zeros((1, 200, 100, 20), np.float32)
    error[:, 199, 99, 19] = 1.0
    distribution = error_distribution(error)
    assert (len(distribution.channel_errors), distribution.heat_rows, distribution.heat_columns) == (64, 16, 16)
    assert np.argmax(distribution.channel_errors) == 63
    assert np.argmax(distribution.heat) == 255
    # The last group has four channels of 2000 elements each, the last part 7 rows and 2 columns of 200 channels.
    assert distribution.channel_errors[-1] == pytest.approx(np.sqrt(1 / (4 * 2000)))
    assert distribution.heat[-1] == pytest.approx(np.sqrt(1 / (7 * 2 * 200)))


def test_errors_whose_squares_exceed_32_bit_floats_have_a_finite_distribution() -> None:
    distribution = error_distribution(np.full((1, 2, 2, 2), 3e38, np.float32))
    assert distribution.channel_errors == pytest.approx((3e38, 3e38))
    assert distribution.heat == pytest.approx((3e38,) * 4)


def test_elements_that_no_reader_uses_are_in_no_picture() -> None:
    error = np.zeros((1, 3, 4, 4), np.float32)
    error[0, 1, 3, 2], error[0, 0, 0, 0], error[0, 0, 0, 1] = -8.0, 100.0, np.nan
    used = np.ones(error.shape, bool)
    used[0, 0] = used[0, :, 0, 0] = False
    assert error_distribution(error, used) == ErrorDistribution(
        largest_error=8.0,
        histogram=(1, *(0,) * 15, 29, *(0,) * 16),
        channel_axis=1,
        channels=3,
        channel_errors=(0.0, pytest.approx(8 / np.sqrt(15)), 0.0),
        heat_rows=4,
        heat_columns=4,
        heat=(*(0.0,) * 14, pytest.approx(8 / np.sqrt(2)), 0.0),
    )
