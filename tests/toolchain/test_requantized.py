"""Values that QNN converts to another grid for some readers: their records, their rows, and the readers' replay."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.models import InputConfig
from qnnsweep.conf.schema import Request
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.compare import compare
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.numerics.verdict import of_scheme
from qnnsweep.tasks.records import (
    Capture,
    Comparison,
    ExpectedTensor,
    Instruction,
    LoweredProgram,
    Operator,
    RequantizedTensor,
)
from qnnsweep.tasks.records.options import ComparisonOptions
from qnnsweep.tasks.toolchain.requantized import Requantization, requantized_tensors
from tests.sample_records import with_method
from tests.toolchain.small_models import quantized_model

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

QUERY, PART = "aten_view_copy_default_2", "getitem_1"
OF_QUERY = f"{QUERY} (requantized for aten_matmul_default_1 and aten_matmul_default_2)"
OF_PART = f"{PART} (requantized for aten_matmul_default)"


class Measured(NamedTuple):
    """One real cell, up to its capture."""

    request: Request
    lowered: LoweredProgram
    capture: Capture


@pytest.fixture(scope="module")
def measured(resources: Resources) -> Measured:
    ask = load(["model=digits_cnn", "scheme=16a8w", "soc=SM8650"]).cells[0].request
    inputs = [InputConfig(name="x", shape=[1, 8, 8])]
    quantized = quantized_model(ask, resources, "requantizing_model", 4, name="requantizing", inputs=inputs)
    options = replace(lowering_options(ask), operator_samples=2)
    lowered = lower(quantized, ask.soc, options, store=resources.store, workers=resources.workers)
    programs = bundle(lowered, ask.measure, store=resources.store)
    capture = measure(programs, (ask.device,), None, store=resources.store, farm=resources.farm)
    return Measured(ask, lowered, capture)


def compared(measured: Measured, lowered: LoweredProgram, resources: Resources) -> Comparison:
    options = ComparisonOptions(
        classifier=False, tolerances=of_scheme(measured.request.tolerance.operators, measured.request.scheme.name)
    )
    tools: Any = {"store": resources.store, "workers": resources.workers}
    return compare(lowered, measured.capture, options, **tools)


@pytest.fixture(scope="module")
def comparison(measured: Measured, resources: Resources) -> Comparison:
    return compared(measured, measured.lowered, resources)


@pytest.mark.toolchain
def test_the_lowering_records_source_readers_and_grid_of_every_requantized_tensor(measured: Measured) -> None:
    operators, requantized = measured.lowered.methods[0].operators, measured.lowered.methods[0].requantized
    names = [
        (
            tensor.operator.name,
            None if tensor.source is None else operators[tensor.source].name,
            [operators[index].name for index in tensor.readers],
        )
        for tensor in requantized
    ]
    assert names == [
        (OF_QUERY, QUERY, ["aten_matmul_default_1", "aten_matmul_default_2"]),
        (OF_PART, PART, ["aten_matmul_default"]),
    ]
    for number, tensor in enumerate(requantized):
        operator, qparams = tensor.operator, tensor.operator.quantization
        assert (operator.index, operator.target) == (len(operators) + number, "aten._to_copy.default")
        assert (operator.debug_handle, operator.shape, operator.subgraph) == (None, (1, 8, 8), 0)
        assert tensor.instruction == 0
        assert qparams is not None
        assert (qparams.dtype, qparams.zero_point, qparams.quant_min) == ("int16", (0,), -32767)
        assert tensor.source is not None
        before = operators[tensor.source].quantization
        assert before is not None
        assert before.zero_point != qparams.zero_point


@pytest.mark.toolchain
def test_every_identifier_is_that_of_a_tensor_that_the_debug_program_is_expected_to_log(measured: Measured) -> None:
    expected = {tensor.identifier: tensor for tensor in measured.lowered.methods[0].expected_tensors}
    requantized = measured.lowered.methods[0].requantized
    assert len({tensor.identifier for tensor in requantized}) == len(requantized) == 2
    for tensor in requantized:
        assert expected[tensor.identifier] == ExpectedTensor(
            identifier=tensor.identifier,
            debug_handles=(),
            output_index=0,
            quantization=tensor.operator.quantization,
            axis_order=tensor.operator.axis_order,
        )


@pytest.mark.toolchain
def test_a_requantized_tensor_is_compared_on_every_sample_and_is_right_to_one_step(comparison: Comparison) -> None:
    captured = sorted({row.sample for row in comparison.operators})
    assert len(captured) >= 2
    assert [(row.sample, row.operator.name, row.status, row.verdict) for row in comparison.requantized] == [
        (sample, name, "compared", "within_grid") for sample in captured for name in (OF_QUERY, OF_PART)
    ]
    totals = {(row.sample, row.operator.name): row.gap.snr_db for row in comparison.operators}
    for row in comparison.requantized:
        assert row.parts.introduced_steps in (0.0, 1.0)
        before, after = totals[row.sample, row.operator.name.split()[0]], row.gap.snr_db
        assert before is not None
        assert after is not None
        assert abs(before - after) < 1  # the other grid has as many steps
    assert comparison.unexpected_events == ()
    assert not [row.operator.name for row in comparison.operators if row.verdict == "introduced"]


@pytest.mark.toolchain
def test_a_reader_is_computed_again_from_the_requantized_value(
    measured: Measured, comparison: Comparison, resources: Resources
) -> None:
    """Without the requantized values, the readers have a part of the error of the conversion too."""
    without = compared(measured, with_method(measured.lowered, requantized=()), resources)
    assert without.requantized == ()
    changed = [
        row.operator.name
        for row, other in zip(comparison.operators, without.operators, strict=True)
        if row.parts != other.parts
    ]
    readers = ["aten_matmul_default", "aten_matmul_default_1", "aten_matmul_default_2"]
    assert changed == readers * 2


def node(source: str, handle: int | None, *readers: int, output: int = 0) -> Requantization:
    expected = ExpectedTensor(
        identifier="to_copy@0", debug_handles=(), output_index=0, quantization=None, axis_order=(0, 2, 1)
    )
    return Requantization(
        expected=expected, target="aten._to_copy.default", shape=(2,), dtype="float32", source=source,
        source_handle=handle, source_output=output, reader_handles=readers,
    )  # fmt: skip


def operator(index: int, name: str, handle: int, output: int = 0, shape: tuple[int, ...] | None = (2,)) -> Operator:
    return Operator(
        index=index, name=name, target="", debug_handle=handle, output_index=output, source_nodes=(name,),
        module_path=f"module.{name}", stack_trace="line", shape=shape, dtype="float32", quantization=None,
        axis_order=None, subgraph=3, constant=False, unused=False,
    )  # fmt: skip


OPERATORS = (
    operator(0, "split", 1, shape=None),
    operator(1, "getitem", 1),
    operator(2, "getitem_1", 1, output=1),
    operator(3, "add", 2),
    operator(4, "topk", 5, shape=None),
    operator(5, "getitem_2", 5),
)


INSTRUCTIONS = (
    Instruction(id=6, debug_handles=(1, 2), backend="QnnBackend", subgraph=0),
    Instruction(id=7, debug_handles=(3,), backend=None, subgraph=None),
    Instruction(id=9, debug_handles=(5,), backend="QnnBackend", subgraph=1),
)


@pytest.mark.parametrize(
    ("requantization", "name", "source", "readers"),
    [
        (node("add", 2, 5), "add (requantized for topk)", 3, (4,)),
        (node("getitem_1", 1, 2, output=1), "getitem_1 (requantized for add)", 2, (3,)),
        (node("getitem", 1, 1, 2), "getitem (requantized for split and add)", 1, (0, 3)),
        (node("getitem_1", None, 2), "getitem_1 (requantized for add)", 2, (3,)),
        (node("x", None, 2), "x (requantized for add)", None, (3,)),
        (node("add", 2), "add (requantized)", 3, ()),
    ],
    ids=["operator", "second output", "two readers", "of another graph", "no operator", "no reader"],
)
def test_the_source_and_the_readers_are_operators_of_the_edge_graph(
    requantization: Requantization, name: str, source: int | None, readers: tuple[int, ...]
) -> None:
    (tensor,) = requantized_tensors([requantization], OPERATORS, INSTRUCTIONS)
    origin = None if source is None else OPERATORS[source]
    assert tensor == RequantizedTensor(
        operator=Operator(
            index=6, name=name, target="aten._to_copy.default", debug_handle=None, output_index=0,
            source_nodes=origin.source_nodes if origin else (), module_path=origin.module_path if origin else "",
            stack_trace="line" if origin else "", shape=(2,), dtype="float32", quantization=None, axis_order=(0, 2, 1),
            subgraph=3 if readers else None, constant=False, unused=False,
        ),
        identifier="to_copy@0",
        instruction={(): None, (4,): 9}.get(readers, 6),
        source=source,
        readers=readers,
    )  # fmt: skip


def test_two_conversions_of_one_value_are_two_records() -> None:
    tensors = requantized_tensors([node("add", 2, 5), node("add", 2, 1)], OPERATORS, INSTRUCTIONS)
    assert [(row.operator.index, row.operator.name, row.readers, row.instruction) for row in tensors] == [
        (6, "add (requantized for topk)", (4,), 9),
        (7, "add (requantized for split)", (0,), 6),
    ]
