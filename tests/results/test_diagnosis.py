"""The sentence about a cell, from sample records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qnnsweep.conf.schema import Request
from qnnsweep.tasks.errors import DeviceError
from qnnsweep.tasks.records import Comparison, ErrorParts, ErrorShare, Quantization
from qnnsweep.tasks.records.vocabulary import Cause
from qnnsweep.tasks.results.diagnosis import diagnosis
from qnnsweep.tasks.results.outcome import CellResult, judge
from tests.sample_records import two_methods_cell

from tests.sample_records import (  # isort: skip
    ANSWER, COMPARISON, CONV, LOWERED, LOWERED_METHOD, passed_cell, up_to_lower, without_debug_program,
)  # fmt: skip

DEVICE = "Compared with the same program on the host, the device is at 45.0 dB."


def share(
    cause: Cause, value: float, name: str | None = None, module: str | None = None, why: str | None = None
) -> Any:
    return ErrorShare(
        output_index=0, output="logits", cause=cause, operator=name, operator_index=0, module_path=module, share=value,
        share_error=0.0, alone_snr_db=20.0, samples=1, projections=8, why=why,
    )  # fmt: skip


def totals(unexplained: float = 0.0, why: str | None = None, **causes: float) -> list[Any]:
    shares: Any = {"weights": 0.0, "clipping": 0.0, "resolution": 0.0, "device": 0.0, "cross": 0.0, **causes}
    return [*(share(cause, value) for cause, value in shares.items()), share("unexplained", unexplained, why=why)]


def additions(count: int, **parts: Any) -> Comparison:
    """Return the comparison of `count` additions, each in a module of its own."""
    qparams = Quantization(scale=(1.0,), zero_point=(65535,), quant_min=0, quant_max=65535, dtype="uint16", axis=None)
    rows = [
        replace(
            COMPARISON.operators[0], sample=1,
            operator=replace(
                CONV, index=number, name=f"add_{number}", target="aten.add.Tensor", module_path=f"layers.{number}",
                quantization=qparams,
            ),
            parts=ErrorParts(**parts),
        )
        for number in range(count)
    ]  # fmt: skip
    return replace(COMPARISON, operators=tuple(rows))


def diagnosed(cell: CellResult) -> str:
    return diagnosis(cell, judge(cell))


def test_operators_of_one_type_and_cause_are_a_group_with_the_reason_and_the_modules(planned: Request) -> None:
    comparison = additions(6, range_used=0.001, codes_used=70)
    shares = [share("resolution", 0.25, f"add_{number}", f"layers.{number}") for number in range(6)]
    cell = passed_cell(
        planned, comparison=replace(comparison, budget=(*totals(resolution=1.41, device=0.09, cross=-0.5), *shares))
    )
    assert diagnosed(cell) == (
        "30.0 dB (the lowest of 2 outputs), of which 141 % are the grids of 6 additions (layers.0, layers.1 and 4 "
        "more): the grid reaches to -65535, so its step is 1, and 70 of 65536 values are used; -50 % because errors "
        f"cancel each other. {DEVICE}"
    )


def test_an_error_of_the_graph_is_all_that_a_sentence_says(planned: Request) -> None:
    why = "the lowered graph is another function than the model"
    changed = replace(LOWERED, methods=(replace(LOWERED_METHOD, graph_change=why),))
    assert diagnosed(passed_cell(planned, lowered=changed)) == f"30.0 dB: {why}."


@pytest.mark.parametrize(
    ("target", "noun"),
    [("aten.hardtanh.default", "clamps"), ("aten.relu.default", "ReLUs"), ("lib.op.out", "lib.op.out operators")],
)
def test_operators_have_the_name_of_their_kind(planned: Request, target: str, noun: str) -> None:
    comparison = additions(2)
    rows = [replace(row, operator=replace(row.operator, target=target)) for row in comparison.operators]
    shares = [share("device", 0.5, f"add_{number}", f"layers.{number}") for number in range(2)]
    comparison = replace(comparison, operators=tuple(rows), budget=(*totals(device=1.0), *shares))
    assert diagnosed(passed_cell(planned, comparison=comparison)) == (
        "30.0 dB (the lowest of 2 outputs), of which 100 % is what the device computes differently in 2 "
        f"{noun} (layers.0, layers.1). {DEVICE}"
    )


def test_an_element_of_a_tuple_has_the_name_of_the_operator_that_returns_the_tuple(planned: Request) -> None:
    comparison = additions(2)
    pool, element = (row.operator for row in comparison.operators)
    pool = replace(pool, target="aten.max_pool2d_with_indices.default", shape=None)
    element = replace(element, target="getitem")
    rows = [replace(row, operator=of) for row, of in zip(comparison.operators, (pool, element), strict=True)]
    budget = (*totals(device=1.0), share("device", 1.0, "add_1", "features.1"))
    assert diagnosed(passed_cell(planned, comparison=replace(comparison, operators=tuple(rows), budget=budget))) == (
        "30.0 dB (the lowest of 2 outputs), of which 100 % is what the device computes differently in the max "
        f"pool features.1. {DEVICE}"
    )


def test_clipping_is_described_by_the_number_of_elements(planned: Request) -> None:
    comparison = replace(
        additions(1, clipped_elements=19),
        budget=(*totals(clipping=0.3, weights=0.7), share("clipping", 0.4, "add_0", "head")),
    )
    assert diagnosed(passed_cell(planned, comparison=comparison)) == (
        "30.0 dB (the lowest of 2 outputs), of which 30 % is clipping in the addition head: "
        f"19 elements are beyond the ends of the grid. {DEVICE}"
    )


def test_an_unexplained_share_has_its_reason(planned: Request) -> None:
    comparison = replace(COMPARISON, budget=tuple(totals(0.6, "aten.heaviside has no derivative", weights=0.4)))
    assert diagnosed(passed_cell(planned, comparison=comparison)) == (
        "30.0 dB (the lowest of 2 outputs), of which 60 % are unexplained (aten.heaviside has no derivative). " + DEVICE
    )


def test_wrong_booleans_are_named_beside_an_unexplained_share(planned: Request) -> None:
    comparison = additions(1, introduced_differing=3)
    assert comparison.operators[0].verdict == "introduced"
    comparison = replace(comparison, budget=tuple(totals(0.6, weights=0.4)))
    assert diagnosed(passed_cell(planned, comparison=comparison)) == (
        "30.0 dB (the lowest of 2 outputs), of which 60 % are unexplained, and the device computes wrong booleans or "
        f"integers in layers.0. {DEVICE}"
    )


def test_the_causes_of_captured_outputs_are_not_those_of_an_output_that_was_not_captured(planned: Request) -> None:
    # The grids of the activations cost the output "c" 19 dB, but its operators were not captured.
    clipped = replace(ANSWER, sample=2, sample_name="c", gap=replace(ANSWER.gap, snr_db=11.0))
    rungs = (
        replace(clipped, rung="edge", gap=replace(ANSWER.gap, snr_db=30.0)),
        replace(clipped, rung="designed", gap=replace(ANSWER.gap, snr_db=11.5)),
    )
    comparison = replace(COMPARISON, outputs=(*COMPARISON.outputs, *rungs, clipped), budget=tuple(totals(weights=1.0)))
    comparison = replace(comparison, budget=(*comparison.budget, share("weights", 1.0, "conv", "layers.0")))
    assert diagnosed(passed_cell(planned, comparison=comparison)) == (
        '11.0 dB (the lowest of 3 outputs, of sample "c"), most of it from the rounding of values to their grids. Of '
        "the error of the 2 outputs with captured operators (30.0 dB or more), 100 % are the weights "
        f"of the convolution layers.0. {DEVICE} The first cure to try is 16-bit float for the convolution layers.0: "
        "+30.0 dB are predicted."
    )


def test_equal_outputs_have_no_causes(planned: Request) -> None:
    equal = replace(ANSWER, status="exact", gap=replace(ANSWER.gap, mse=0.0, snr_db=None), previous_snr_db=None)
    comparison = replace(COMPARISON, outputs=(replace(equal, previous_status="exact"),), budget=())
    assert diagnosed(passed_cell(planned, comparison=comparison)) == (
        "The final outputs are those of eager PyTorch, bit by bit. The device computes what the same program computes "
        "on the host, bit by bit."
    )


def test_an_output_with_nans_is_named(planned: Request) -> None:
    comparison = replace(COMPARISON, outputs=(replace(ANSWER, status="nonfinite_differs"),))
    assert diagnosed(passed_cell(planned, comparison=comparison)).startswith("Output logits of a: ")


def test_without_operators_the_reason_is_that_of_the_lowering(planned: Request) -> None:
    assert diagnosed(without_debug_program(planned)).endswith(
        "Without operators, the causes are unknown: already inserted."
    )


def test_a_cell_that_was_not_compared_has_its_outcome_and_its_error(planned: Request) -> None:
    assert diagnosed(up_to_lower(planned, "deploy", DeviceError("unplugged\nand more"))) == (
        "infrastructure in deploy: unplugged"
    )


def test_a_method_without_a_debug_program_is_named_although_another_method_has_one(planned: Request) -> None:
    cell = two_methods_cell(planned, debug_program=None, debug_unavailable="already inserted")
    assert "Without the operators of decode, the causes of its error are unknown: already inserted." in diagnosed(cell)
    every = replace(cell, comparison=replace(COMPARISON, operators=(), budget=()))
    assert diagnosed(every).endswith("Without operators, the causes are unknown: already inserted.")
