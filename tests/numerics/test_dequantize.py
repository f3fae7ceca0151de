from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tasks.errors import EvidenceError
from tasks.numerics.dequantize import dequantize, snap, undo_layout
from tasks.records import Quantization

UINT8 = Quantization(scale=(0.5,), zero_point=(10,), axis=None, quant_min=0, quant_max=255, dtype="uint8")
CHANNELS = Quantization(scale=(0.5, 2.0), zero_point=(0, 1), axis=1, quant_min=-128, quant_max=127, dtype="int8")
GRIDS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}


@st.composite
def quantized(draw: Callable) -> tuple[np.ndarray, Quantization]:
    """Codes and a quantization that fits them, per tensor or per channel."""
    dtype = draw(st.sampled_from(sorted(GRIDS)))
    low, high = GRIDS[dtype]
    codes = draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)))
    axis = draw(st.none() | st.integers(-codes.ndim, codes.ndim - 1))
    channels = 1 if axis is None else codes.shape[axis]
    scale = draw(st.lists(st.floats(1e-9, 1e9), min_size=channels, max_size=channels))
    zero_point = draw(st.lists(st.integers(low, high), min_size=channels, max_size=channels))
    return codes, Quantization(
        scale=tuple(scale), zero_point=tuple(zero_point), axis=axis, quant_min=low, quant_max=high, dtype=dtype
    )


def test_codes_become_reals_per_tensor_and_per_channel() -> None:
    assert dequantize(np.array([10, 0, 255], np.uint8), UINT8).tolist() == [0.0, -5.0, 122.5]
    assert dequantize(np.array([[4, 4], [-4, 1]], np.int8), CHANNELS).tolist() == [[2.0, 6.0], [-2.0, 0.0]]


@given(quantized())
def test_each_code_is_offset_and_scaled_by_its_own_channel(case: tuple[np.ndarray, Quantization]) -> None:
    codes, quantization = case
    real = dequantize(codes, quantization)
    assert (real.shape, real.dtype) == (codes.shape, np.float64)
    for index in np.ndindex(codes.shape):
        channel = 0 if quantization.axis is None else index[quantization.axis]
        code = int(codes[index]) - quantization.zero_point[channel]
        assert real[index] == code * quantization.scale[channel]


@given(quantized())
def test_what_is_on_the_grid_stays_where_it_is(case: tuple[np.ndarray, Quantization]) -> None:
    real = dequantize(*case)
    np.testing.assert_array_equal(snap(real, case[1]), real)


@given(quantized(), st.floats(-0.49, 0.49))
def test_what_is_less_than_half_a_step_off_snaps_back(case: tuple[np.ndarray, Quantization], steps: float) -> None:
    codes, quantization = case
    real = dequantize(codes, quantization)
    a_step = dequantize(np.asarray(codes, np.float64) + 1.0, quantization) - real
    np.testing.assert_array_equal(snap(real + steps * a_step, quantization), real)


def test_snapping_goes_to_the_even_step_on_a_tie_and_stops_at_the_ends() -> None:
    real = np.array([0.25, 0.75, -0.25, 1e300, -np.inf, np.nan])
    np.testing.assert_array_equal(snap(real, UINT8), [0.0, 1.0, 0.0, 122.5, -5.0, np.nan])


@given(
    hnp.arrays(np.int16, hnp.array_shapes(min_dims=0, max_dims=5, max_side=3)).flatmap(
        lambda x: st.tuples(st.just(x), st.permutations(range(x.ndim)))
    )
)
def test_undoing_a_layout_is_the_inverse_of_the_permutation(case: tuple[np.ndarray, list[int]]) -> None:
    x, axis_order = case
    on_device = np.transpose(x, axis_order)
    np.testing.assert_array_equal(undo_layout(on_device, tuple(axis_order)), x)


def test_nhwc_goes_back_to_nchw_without_a_copy() -> None:
    on_device = np.zeros((1, 8, 9, 3))
    restored = undo_layout(on_device, (0, 2, 3, 1))
    assert restored.shape == (1, 3, 8, 9)
    assert np.shares_memory(restored, on_device)
    assert undo_layout(on_device, None) is on_device


@pytest.mark.parametrize("axis_order", [(0, 1), (0, 1, 1), (0, 1, 3)])
def test_an_order_that_is_no_permutation_of_the_axes_is_refused(axis_order: tuple[int, ...]) -> None:
    with pytest.raises(EvidenceError, match="no permutation"):
        undo_layout(np.zeros((2, 3, 4)), axis_order)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"axis": 2}, "axis 2 does not fit a tensor of shape"),
        ({"axis": 0}, "2 scales and 2 zero points do not fit"),
        ({"axis": None}, "2 scales and 2 zero points do not fit"),
        ({"zero_point": (0,)}, "2 scales and 1 zero points do not fit"),
        ({"scale": (1.0, 0.0)}, "scales are positive"),
        ({"scale": (1.0, float("nan"))}, "scales are positive"),
    ],
)
def test_a_quantization_that_does_not_fit_is_refused(changes: dict, problem: str) -> None:
    unfit = dataclasses.replace(CHANNELS, **changes)
    for bring in (dequantize, snap):
        with pytest.raises(EvidenceError, match=problem):
            bring(np.zeros((3, 2), np.int8), unfit)
