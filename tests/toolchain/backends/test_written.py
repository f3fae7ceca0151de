"""The grids on which HTP's kernels write values that are read on other grids."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.conf.schemes import OverridePrecision, SchemeConfig, SchemeOverride
from qnnsweep.tasks.records import Quantization, WrittenGrid
from qnnsweep.tasks.toolchain.backends.kernel_call import KernelCall
from qnnsweep.tasks.toolchain.backends.qnn.written import written_grid

UNIT = 2.0**-16
BYTES = Quantization(scale=(0.1,), zero_point=(0,), axis=None, quant_min=0, quant_max=255, dtype="uint8")
WORDS = replace(BYTES, quant_max=65535, dtype="uint16")
ELSEWHERE = [SchemeOverride(node="a", precision=OverridePrecision.cpu)]
ELSEWHERE += [SchemeOverride(node="a", precision=OverridePrecision.float16)]
SCHEME = SchemeConfig(name="8a8w", quant_dtype="8a8w", overrides=ELSEWHERE)
CAST = "dim_order_ops._to_dim_order_copy.default"


def softmax(step: float, keys: int = 300, qparams: Quantization = BYTES, **fields: Any) -> WrittenGrid | None:
    read = replace(qparams, scale=(step,))
    call = KernelCall(
        index=7, target="aten._softmax.default", arguments=({"operator": 6}, -1, False), shape=(1, 4, 20, keys),
        dtype="float32", qparams=read, overrides=(), source_dtype="float32", cast_dtype="float32",
    )  # fmt: skip
    return written_grid(replace(call, **fields), SCHEME)


def cast(qparams: Quantization = BYTES, **fields: Any) -> WrittenGrid | None:
    call = KernelCall(
        index=3, target=CAST, arguments=({"operator": 2},), shape=(1, 8), dtype="float32", qparams=qparams,
        overrides=(), source_dtype="int32", cast_dtype="int32",
    )  # fmt: skip
    return written_grid(replace(call, **fields), SCHEME)


@given(st.floats(1.0, 257.0).filter(lambda units: units != math.floor(units)))
def test_the_step_of_a_softmax_is_a_whole_number_of_units_rounded_down(units: float) -> None:
    written = softmax(units * UNIT)
    assert written is not None
    assert (written.operator, written.quantization.scale) == (7, (math.floor(units) * UNIT,))
    assert written.quantization == replace(BYTES, scale=written.quantization.scale)


@given(st.floats(1e-3, 257.0).filter(lambda units: units != math.floor(units)))
def test_with_the_range_that_the_kernel_holds_no_value_of_a_softmax_is_wrong_by_half_a_step(units: float) -> None:
    written = softmax(units * UNIT)
    assert written is not None
    step = written.held[1] / 255
    assert step >= units * UNIT, "no value is clipped"
    assert step <= (units + 1) * UNIT * 1.002
    again = softmax(step)
    assert again is None or (step / again.quantization.scale[0] - 1) * 255 < 0.5


def test_below_a_unit_every_value_of_a_softmax_is_the_largest_of_the_grid() -> None:
    written = softmax(0.9 * UNIT)
    assert written is not None
    assert written.quantization.scale[0] * 255 < 1e-9, "the largest value of the grid"
    assert written.held == (0.0, 0.003891)


@pytest.mark.parametrize(
    ("units", "fields"),
    [
        (1.5, {"qparams": WORDS}),
        (12.0, {}),
        (140.5, {"keys": 16}),
        (1.5, {"overrides": (0,)}),
        (1.5, {"overrides": (1,)}),
        (1.5, {"target": "aten._log_softmax.default"}),
    ],
    ids=["16 bits", "a whole number", "a short row", "on the CPU", "in float16", "another operator"],
)
def test_other_values_are_written_as_they_are_read(units: float, fields: dict[str, Any]) -> None:
    assert softmax(units * UNIT, **fields) is None


def test_the_softmax_of_attention_is_the_same_kernel() -> None:
    assert softmax(1.5 * UNIT, target="aten._safe_softmax.default") == softmax(1.5 * UNIT)


def test_a_short_row_of_a_fine_grid_has_whole_steps_too() -> None:
    assert softmax(12.5 * UNIT, keys=16) is not None


@pytest.mark.parametrize("read", [BYTES, replace(WORDS, zero_point=(25206,))])
def test_a_cast_writes_the_integer_itself(read: Quantization) -> None:
    expected = WrittenGrid(
        operator=3, quantization=replace(read, scale=(1.0,), zero_point=(0,)), held=(0.0, float(read.quant_max))
    )
    assert cast(read) == expected
    assert cast(replace(read, scale=(1.0,), zero_point=(0,))) is None


def test_the_cast_of_an_integer_that_the_same_delegate_narrows_is_right() -> None:
    assert cast(cast_dtype="int64") is None


@pytest.mark.parametrize(
    "fields", [{"source_dtype": "bool"}, {"source_dtype": "float32"}, {"dtype": "int32"}, {"overrides": (0,)}]
)
def test_other_casts_are_right(fields: dict[str, Any]) -> None:
    assert cast(**fields) is None
