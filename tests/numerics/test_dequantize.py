from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.numerics.dequantize import dequantize, dequantize_block, fake_quantize, quantize, undo_layout
from qnnsweep.tasks.records import Quantization

UINT8 = Quantization(scale=(0.5,), zero_point=(10,), axis=None, quant_min=0, quant_max=255, dtype="uint8")
CHANNELS = Quantization(scale=(0.5, 2.0), zero_point=(0, 1), axis=1, quant_min=-128, quant_max=127, dtype="int8")
GRIDS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}


@st.composite
def quantized(draw: Callable) -> tuple[np.ndarray, Quantization]:
    """Draw quantized values and a quantization that fits them, per tensor or per channel."""
    dtype = draw(st.sampled_from(sorted(GRIDS)))
    low, high = GRIDS[dtype]
    values = draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)))
    axis = draw(st.none() | st.integers(-values.ndim, values.ndim - 1))
    channels = 1 if axis is None else values.shape[axis]
    scale = draw(st.lists(st.floats(1e-9, 1e9), min_size=channels, max_size=channels))
    zero_point = draw(st.lists(st.integers(low, high), min_size=channels, max_size=channels))
    return values, Quantization(
        scale=tuple(scale), zero_point=tuple(zero_point), axis=axis, quant_min=low, quant_max=high, dtype=dtype
    )


def test_quantized_values_are_dequantized_per_tensor_and_per_channel() -> None:
    assert dequantize(np.array([10, 0, 255], np.uint8), UINT8).tolist() == [0.0, -5.0, 122.5]
    assert dequantize(np.array([[4, 4], [-4, 1]], np.int8), CHANNELS).tolist() == [[2.0, 6.0], [-2.0, 0.0]]


@given(quantized())
def test_each_quantized_value_is_offset_and_scaled_by_its_own_channel(case: tuple[np.ndarray, Quantization]) -> None:
    values, qparams = case
    dequantized = dequantize(values, qparams)
    assert (dequantized.shape, dequantized.dtype) == (values.shape, np.float64)
    for index in np.ndindex(values.shape):
        channel = 0 if qparams.axis is None else index[qparams.axis]
        steps = int(values[index]) - qparams.zero_point[channel]
        assert dequantized[index] == steps * qparams.scale[channel]


@given(quantized(), st.integers(0, 60), st.integers(0, 60))
def test_a_block_is_a_part_of_the_flattened_values(
    case: tuple[np.ndarray, Quantization], start: int, length: int
) -> None:
    values, qparams = case
    part = slice(start, start + length)
    np.testing.assert_array_equal(
        dequantize_block(values, qparams, part), dequantize(values, qparams).reshape(-1)[part]
    )


@given(quantized())
def test_values_are_rounded_to_the_smallest_type_of_integers(case: tuple[np.ndarray, Quantization]) -> None:
    values, qparams = case
    rounded = quantize(dequantize(values, qparams), qparams, smallest_type=True)
    assert (rounded.dtype, rounded.tolist()) == (values.dtype, values.tolist())


def test_a_value_that_is_no_number_stays_none() -> None:
    rounded = quantize(np.array([np.nan, np.inf, 0.0]), UINT8, smallest_type=True)
    np.testing.assert_array_equal(rounded, [np.nan, 255.0, 10.0])


@given(quantized())
def test_fake_quantize_keeps_representable_values(case: tuple[np.ndarray, Quantization]) -> None:
    dequantized = dequantize(*case)
    np.testing.assert_array_equal(fake_quantize(dequantized, case[1]), dequantized)


@given(quantized(), st.floats(-0.49, 0.49))
def test_fake_quantize_removes_errors_below_half_a_step(case: tuple[np.ndarray, Quantization], steps: float) -> None:
    values, qparams = case
    dequantized = dequantize(values, qparams)
    step = dequantize(np.asarray(values, np.float64) + 1.0, qparams) - dequantized
    np.testing.assert_array_equal(fake_quantize(dequantized + steps * step, qparams), dequantized)


def test_fake_quantize_rounds_ties_to_even_and_clamps_at_the_ends() -> None:
    dequantized = np.array([0.25, 0.75, -0.25, 1e300, -np.inf, np.nan])
    np.testing.assert_array_equal(fake_quantize(dequantized, UINT8), [0.0, 1.0, 0.0, 122.5, -5.0, np.nan])


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
        ({"scale": (1.0, 0.0)}, "scales of a quantization must be positive"),
        ({"scale": (1.0, float("nan"))}, "scales of a quantization must be positive"),
    ],
)
def test_a_quantization_that_does_not_fit_is_refused(changes: dict, problem: str) -> None:
    unfit = dataclasses.replace(CHANNELS, **changes)
    for convert in (dequantize, fake_quantize):
        with pytest.raises(EvidenceError, match=problem):
            convert(np.zeros((3, 2), np.int8), unfit)
