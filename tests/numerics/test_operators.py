from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.numerics.align import align
from qnnsweep.tasks.numerics.dequantize import dequantize, undo_layout
from qnnsweep.tasks.numerics.metrics import gap
from qnnsweep.tasks.numerics.operators import Compared, compare_operator, compare_values
from qnnsweep.tasks.records import ExpectedTensor, Gap, Operator, Quantization
from qnnsweep.tasks.toolchain.readback.etdump import read_etdump, tensor

DATA = Path(__file__).parent.parent / "data"

GRID = Quantization(scale=(0.25,), zero_point=(3,), axis=None, quant_min=0, quant_max=255, dtype="uint8")
NHWC = (0, 2, 3, 1)
EQUAL = Gap(mse=0.0, mean_abs=0.0, max_abs=0.0, snr_db=None, cosine=pytest.approx(1.0, abs=1e-15))
"""The gap of two equal tensors."""


def operator(shape: tuple[int, ...]) -> Operator:
    return Operator(
        index=0,
        name="aten_relu_default",
        target="aten.relu.default",
        debug_handle=1,
        output_index=0,
        source_nodes=(),
        module_path="",
        stack_trace="",
        shape=shape,
        dtype="float32",
        quantization=None,
        axis_order=None,
        subgraph=0,
        constant=False,
        unused=False,
    )


@given(hnp.arrays(np.uint8, (1, 2, 3, 4)), hnp.arrays(np.float32, (1, 2, 3, 4), elements=st.floats(-60, 60, width=32)))
def test_a_quantized_nhwc_tensor_is_compared_in_the_reference_s_layout_and_scale(
    quantized: np.ndarray, reference: np.ndarray
) -> None:
    captured = np.transpose(quantized, NHWC)
    dequantized = dequantize(quantized, GRID)
    status = "exact" if (dequantized == reference).all() else "compared"
    assert compare_operator(operator(quantized.shape), GRID, NHWC, captured, reference) == Compared(
        status=status, gap=gap(dequantized, reference)
    )


def test_equal_tensors_are_exact() -> None:
    reference = np.array([0.0, 0.5], np.float32)
    assert compare_operator(operator((2,)), GRID, None, np.array([3, 5], np.uint8), reference) == Compared(
        status="exact", gap=EQUAL
    )


def test_a_per_channel_axis_refers_to_the_layout_of_pytorch() -> None:
    qparams = Quantization(scale=(1.0, 10.0), zero_point=(0, 0), axis=1, quant_min=-128, quant_max=127, dtype="int8")
    captured = np.array([[[[1, 1]]]], np.int8)  # N H W C
    reference = np.array([1.0, 10.0], np.float32).reshape(1, 2, 1, 1)
    assert compare_operator(operator((1, 2, 1, 1)), qparams, NHWC, captured, reference).status == "exact"


def test_an_integer_reference_is_compared_without_dequantizing() -> None:
    indices = np.array([3, 5], np.int32)
    assert compare_operator(operator((2,)), GRID, None, indices, np.array([3, 5])).status == "exact"


def test_integers_without_qparams_are_not_compared_with_floats() -> None:
    assert compare_operator(operator((1,)), None, None, np.array([3], np.uint8), np.array([0.5])) == Compared(
        status="dtype_differs"
    )


@pytest.mark.parametrize(
    ("captured", "axis_order"), [((6,), None), ((3, 2), None), ((1, 2, 3), None), ((2, 3), NHWC), ((2, 3), (1, 0))]
)
def test_no_tensor_is_reshaped_to_fit(captured: tuple[int, ...], axis_order: tuple[int, ...] | None) -> None:
    compared = compare_operator(operator((2, 3)), None, axis_order, np.zeros(captured), np.zeros((2, 3)))
    assert compared == Compared(status="shape_differs")


def test_a_reference_of_another_shape_than_the_operator_s_is_refused() -> None:
    with pytest.raises(EvidenceError, match=r"aten_relu_default has shape \(2,\)"):
        compare_operator(operator((3,)), None, None, np.zeros(3), np.zeros(2))


@pytest.mark.parametrize(
    ("actual", "reference", "counts"),
    [
        ([np.nan, 1.0], [2.0, 1.0], (1, 0)),
        ([2.0, 1.0], [np.inf, 1.0], (0, 1)),
        ([np.inf, 1.0], [-np.inf, 1.0], (1, 1)),
        ([np.nan, 1.0], [np.inf, 1.0], (1, 1)),
        ([np.nan, 1.0], [1.0, np.nan], (1, 1)),
        ([np.nan, np.inf], [1.0, 1.0], (2, 0)),
    ],
)
def test_infinities_and_nans_that_disagree_are_counted_and_have_their_own_status(
    actual: list, reference: list, counts: tuple[int, int]
) -> None:
    assert compare_values(np.array(actual), np.array(reference)) == Compared(
        status="nonfinite_differs", nonfinite_actual=counts[0], nonfinite_reference=counts[1]
    )


def test_infinities_and_nans_that_agree_are_left_out_of_the_gap() -> None:
    rest = [1.0, 2.0, 3.0]
    actual = np.array([np.nan, np.inf, -np.inf, *rest])
    reference = np.array([np.nan, np.inf, -np.inf, 1.0, 2.0, 4.0])
    assert compare_values(actual, reference) == Compared(
        status="compared", gap=gap(np.array(rest), reference[3:]), nonfinite_actual=3, nonfinite_reference=3
    )
    assert compare_values(actual, actual).status == "exact"
    assert compare_values(actual[:3], reference[:3]) == Compared(
        status="exact", nonfinite_actual=3, nonfinite_reference=3
    )


def test_an_integer_tensor_can_be_compared_with_a_float_tensor() -> None:
    assert compare_values(np.ones(3), np.ones(3, np.int32)) == Compared(status="exact", gap=EQUAL)


def test_final_outputs_of_two_shapes_are_not_compared() -> None:
    assert compare_values(np.zeros((2, 1)), np.zeros(2)) == Compared(status="shape_differs")


def test_unused_elements_are_left_out_and_the_status_is_masked() -> None:
    captured, reference = np.array([[3, 255], [5, 4]], np.uint8), np.array([[0.0, 1.0], [0.5, 9.0]], np.float32)
    used = np.array([[True, False], [True, True]])
    compared = compare_operator(operator((2, 2)), GRID, None, captured, reference, used)
    expected = gap(np.array([0.0, 0.5, 0.25]), np.array([0.0, 0.5, 9.0]))
    assert compared == Compared(status="masked", gap=expected)
    # The used elements are equal, and the status is not `exact`, because the others differ.
    used[1, 1] = False
    compared = compare_operator(operator((2, 2)), GRID, None, captured, reference, used)
    assert compared == Compared(status="masked", gap=EQUAL)


def test_the_used_mask_refers_to_the_layout_of_pytorch() -> None:
    reference = np.arange(6.0).reshape(1, 2, 1, 3)
    used = reference != 4
    captured = np.transpose(np.where(used, reference, 99.0), NHWC)
    compared = compare_operator(operator((1, 2, 1, 3)), None, NHWC, captured, reference, used)
    assert compared == Compared(status="masked", gap=EQUAL)


def test_a_used_infinity_is_not_masked() -> None:
    captured, reference = np.array([np.inf, np.nan, 1.0]), np.array([0.0, 0.0, 1.0])
    used = np.array([True, False, True])
    assert compare_operator(operator((3,)), None, None, captured, reference, used) == Compared(
        status="nonfinite_differs", nonfinite_actual=1
    )
    assert compare_operator(operator((3,)), None, None, captured, reference, used & (reference > 0)).status == "masked"


def test_the_simulator_s_max_pool_is_exact_on_its_own_inputs() -> None:
    """A real capture, end to end: log, alignment, dequantization, layout. The quantization is the compiler's."""
    qparams = Quantization(
        scale=(0.008616707287728786,), zero_point=(0,), axis=None, quant_min=0, quant_max=255, dtype="uint8"
    )
    identifiers = {"aten_relu_default@0": 10, "aten_max_pool2d_with_indices_default@0": 11}
    expected_tensors = [
        ExpectedTensor(identifier=name, debug_handles=(handle,), output_index=0, quantization=qparams, axis_order=NHWC)
        for name, handle in identifiers.items()
    ]
    relu = replace(operator((1, 8, 8, 8)), debug_handle=10)
    pool = replace(operator((1, 8, 4, 4)), index=1, debug_handle=11)
    alignment = align([relu, pool], expected_tensors, read_etdump((DATA / "convnet_qnn.etdump").read_bytes()).tensors)
    buffer = memoryview((DATA / "convnet_qnn.debug").read_bytes())
    assert [(row.run, row.operator.index, row.reason) for row in alignment.operators] == [
        (1, 0, None),
        (1, 1, None),
        (2, 0, None),
        (2, 1, None),
    ]
    for before, after in (alignment.operators[:2], alignment.operators[2:]):
        relu_values, pool_values = (tensor(row.matches[0].event, buffer) for row in (before, after))
        pool_input = dequantize(undo_layout(relu_values, NHWC), qparams)
        reference = pool_input.reshape(1, 8, 4, 2, 4, 2).max(axis=(3, 5))
        assert compare_operator(after.operator, qparams, NHWC, pool_values, reference) == Compared(
            status="exact", gap=EQUAL
        )
