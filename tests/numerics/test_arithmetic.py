"""The model of the device's arithmetic: rounding, float16, and runs with errors left out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from qnnsweep.tasks.numerics.arithmetic import (
    ARISING,
    Arithmetic,
    Departure,
    SampleRuns,
    as_half,
    departure_of,
    read_half,
)
from qnnsweep.tasks.numerics.dequantize import fake_quantize, on_grid
from qnnsweep.tasks.numerics.element_use import Array
from qnnsweep.tasks.records import Quantization
from tests.numerics.numpy_device import quantization

from tests.numerics.numpy_graph import above, chosen, entry, line, matmul, relu, scaled  # isort: skip

CHANNELS = Quantization(scale=(0.1, 3.0), zero_point=(0, -7), axis=0, quant_min=-128, quant_max=127, dtype="int8")
FLOATS = arrays.arrays(
    np.float32, (2, 7), elements=st.floats(-1e6, 1e6, width=32) | st.sampled_from([np.inf, -np.inf, np.nan, -0.0])
)


@given(FLOATS, st.sampled_from([quantization(0.01), quantization(0.25, 3, bits=8), CHANNELS]))
def test_values_on_a_grid_are_those_of_fake_quantize_bit_by_bit(values: Array, qparams: Quantization) -> None:
    expected = fake_quantize(values, qparams).astype(np.float32)
    assert np.array_equal(on_grid(values, qparams, clips=True, rounds=True), expected, equal_nan=True)


def test_clipping_and_rounding_can_be_left_out() -> None:
    values, qparams = np.array([-1000.0, 0.3, 1000.0], np.float32), quantization(1.0, bits=8)
    assert on_grid(values, qparams, clips=True, rounds=False).tolist() == [-128.0, np.float32(0.3), 127.0]
    assert on_grid(values, qparams, clips=False, rounds=True).tolist() == [-1000.0, 0.0, 1000.0]
    assert on_grid(values, qparams, clips=True, rounds=True, more_steps=np.array([2, 1, -1])).tolist() == [-126, 1, 126]


@given(FLOATS)
def test_float16_is_that_of_numpy_and_its_range_can_be_left_out(values: Array) -> None:
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16).astype(np.float32)
    assert np.array_equal(as_half(values), expected, equal_nan=True)
    wide, beyond = as_half(values, overflows=False), np.isfinite(values) & (np.abs(values) >= 65520)
    assert np.array_equal(wide[~beyond], expected[~beyond], equal_nan=True)
    assert np.allclose(wide[beyond], values[beyond], rtol=2**-11, atol=0)
    assert np.array_equal(np.isinf(as_half(values, rounds=False)), np.isinf(expected))


def test_the_infinities_and_nans_of_float16_that_a_simulator_reads_as_numbers_are_read_back() -> None:
    read = np.array([65504.0, 65536.01, -65536.01, 131008.0, -98304.0, 0.5], np.float32)
    expected = np.array([65504.0, np.inf, -np.inf, np.nan, np.nan, 0.5], np.float32)
    assert np.array_equal(read_half(read), expected, equal_nan=True)
    every = np.arange(2**16, dtype=np.uint16)
    bits, exponents = every.view(np.float16).astype(np.float32), (every >> 10) & 31
    as_numbers = np.where(
        exponents == 31, np.where(every >> 15, -1, 1) * 65536.0 * (1 + (every & 1023) / 1024), bits
    ).astype(np.float32)
    assert np.array_equal(read_half(as_numbers), bits, equal_nan=True)


PROGRAM = line(entry(np.zeros((2, 3), np.float32)), scaled(0, 2.0), matmul(1, np.eye(3, dtype=np.float32)), relu(2))
X = np.array([[0.33, -1.27, 2.02], [0.5, 30.0, -1.1]], np.float32)
EIGHT = quantization(0.1, bits=8)


def test_without_all_causes_a_run_is_the_float_models_and_with_all_it_is_the_devices() -> None:
    steps = np.zeros((2, 3), np.int32)
    steps[0, 2] = 3
    arithmetic = Arithmetic(grids={-1: EIGHT, 1: EIGHT, 3: EIGHT}, departures={1: Departure(steps=steps)})
    assert np.array_equal(arithmetic.run(PROGRAM, [X], lambda *_: True)[0], np.maximum(2 * X, 0))
    device = fake_quantize(2 * fake_quantize(X, EIGHT).astype(np.float32), EIGHT).astype(np.float32)
    device[0, 2] = (np.rint(device[0, 2] / 0.1) + 3) * 0.1
    (result,) = arithmetic.run(PROGRAM, [X], lambda *_: False)
    assert np.allclose(result, np.maximum(device, 0), atol=1e-6)
    (without_clipping,) = arithmetic.run(PROGRAM, [X], lambda cause, index: cause == "clipping")
    assert without_clipping[1, 1] == pytest.approx(60.0)
    (one_left,) = arithmetic.run(PROGRAM, [X], lambda cause, index: (cause, index) != ("clipping", 1))
    assert one_left.tolist() == np.minimum(np.maximum(2 * X, 0), np.float32(12.7)).tolist()


def test_a_merged_reader_has_the_value_before_its_rounding() -> None:
    coarse = quantization(4.0, bits=8)
    plain, merged = Arithmetic(grids={2: coarse}), Arithmetic(grids={2: coarse}, merged=frozenset({(3, 2)}))
    assert plain.run(PROGRAM, [X], lambda *_: False)[0].tolist() == [[0, 0, 4], [0, 60, 0]]
    assert np.array_equal(merged.run(PROGRAM, [X], lambda *_: False)[0], np.maximum(2 * X, 0))


def test_a_kernel_that_writes_another_grid_is_an_error_of_the_device() -> None:
    read, written = quantization(1.0, bits=8), quantization(0.5, 3, bits=8)
    arithmetic = Arithmetic(grids={2: read}, written={2: written})
    (result,) = arithmetic.run(PROGRAM, [X], lambda *_: False)
    assert result.tolist() == [[4, 0, 11], [5, 123, 0]], "the quantized values round(2 x / 0.5) + 3 on a step of 1"
    without = arithmetic.run(PROGRAM, [X], lambda cause, index: (cause, index) == ("device", 2))
    exact = Arithmetic(grids={2: read}).run(PROGRAM, [X], lambda *_: False)
    assert np.array_equal(without, exact)


def test_what_the_device_writes_for_an_undefined_value_is_left_out_with_the_reason_why_it_is_undefined() -> None:
    program = line(entry(X), scaled(0, 1.0), scaled(1, 1.0))
    nothing = np.zeros((2, 3), np.bool_)
    first, undefined = nothing.copy(), nothing.copy()
    first[0, 0] = undefined[0, 0] = True
    broken = Departure(replaced=first, values=np.full((2, 3), np.nan, np.float32))
    written = Departure(undefined=undefined, values=np.full((2, 3), 12.7, np.float32))
    arithmetic = Arithmetic(grids={2: EIGHT}, departures={1: broken, 2: written})
    exact = fake_quantize(X, EIGHT).astype(np.float32)
    with_all = np.where(undefined, np.float32(12.7), exact)
    assert np.array_equal(arithmetic.run(program, [X], lambda *_: False)[0], with_all)
    without = arithmetic.run(program, [X], lambda cause, index: (cause, index) == ("device", 1))[0]
    assert np.array_equal(without, exact), "the second operator is right on a right value"


def test_a_conversion_rounds_for_its_reader_only_and_counts_there() -> None:
    arithmetic = Arithmetic(conversions={(2, 1): quantization(4.0, bits=8)})
    assert arithmetic.run(PROGRAM, [X], lambda *_: False)[0].tolist() == [[0, 0, 4], [0, 60, 0]]
    exact = arithmetic.run(PROGRAM, [X], lambda cause, index: (cause, index) == ("resolution", 2))
    assert np.array_equal(exact[0], np.maximum(2 * X, 0))


def test_booleans_depart_by_their_elements_and_follow_upstream_values_otherwise() -> None:
    program = line(entry(X), above(0, 0.4), scaled(0, 10.0), chosen(1, 0, 2))
    flipped = departure_of(np.array([True, False]), np.array([True, True]))
    assert flipped is not None
    assert flipped.replaced is not None
    assert flipped.replaced.tolist() == [False, True]
    replaced = np.zeros((2, 3), np.bool_)
    replaced[0, 0] = True
    arithmetic = Arithmetic(departures={1: Departure(replaced=replaced, values=~np.zeros((2, 3), np.bool_))})
    result = arithmetic.run(program, [X], lambda *_: False)[0]
    expected = np.where(X > 0.4, X, 10 * X)
    expected[0, 0] = X[0, 0]
    assert np.array_equal(result, expected)
    without = arithmetic.run(program, [X], lambda cause, _: cause == "device")[0]
    assert np.array_equal(without, np.where(X > 0.4, X, 10 * X))


@given(FLOATS, FLOATS)
def test_a_departure_leads_from_the_expected_to_the_actual_elements(expected: Array, actual: Array) -> None:
    program = line(entry(expected), scaled(0, 1.0))
    departure = departure_of(expected, actual)
    arithmetic = Arithmetic(departures={} if departure is None else {1: departure})
    (result,) = arithmetic.run(program, [expected], lambda *_: False)
    odd = ~np.isfinite(expected) | ~np.isfinite(actual)
    assert np.array_equal(result[odd], actual[odd], equal_nan=True)
    assert np.allclose(result[~odd], actual[~odd], atol=1e-7 * float(np.abs(expected[~odd]).max(initial=1)) + 1e-30)


@given(st.data())
def test_a_run_that_starts_from_recorded_values_equals_the_whole_run(data: st.DataObject) -> None:
    steps = np.array([[1, 0, -2], [0, 3, 0]], np.int32)
    arithmetic = Arithmetic(
        grids={-1: EIGHT, 1: EIGHT, 2: quantization(0.5, bits=8), 3: EIGHT},
        departures={1: Departure(steps=steps)},
        merged=frozenset({(3, 2)}),
    )
    runs, causes = SampleRuns(arithmetic, PROGRAM, [X]), frozenset(data.draw(st.sets(st.sampled_from(ARISING))))
    part = data.draw(st.sampled_from(ARISING)), data.draw(st.sampled_from([-1, 1, 2, 3]))
    runs.without(causes)
    runs.without(frozenset(ARISING))
    whole = arithmetic.run(PROGRAM, [X], lambda cause, index: cause in causes or (cause, index) == part)
    assert np.array_equal(runs.without(causes, part)[0], whole[0])
    alone = arithmetic.run(PROGRAM, [X], lambda cause, index: (cause, index) != part)
    assert np.array_equal(runs.alone(part)[0], alone[0])
