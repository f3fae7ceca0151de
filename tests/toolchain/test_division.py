"""A debug program that does not run, or that is not the shipping program, and the several programs in its place."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from qnnsweep.conf.load import load
from qnnsweep.conf.models import InputConfig
from qnnsweep.conf.schema import Request
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.compare import compare
from qnnsweep.tasks.comparison.division import next_divisions
from qnnsweep.tasks.divide import divide
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.numerics.verdict import of_scheme
from qnnsweep.tasks.records import Capture, Comparison, Division, LoweredProgram, QuantizedModel, Span, Unlogged
from qnnsweep.tasks.records.options import ComparisonOptions
from tests.sample_records import with_method
from tests.toolchain.small_models import quantized_model

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]
NORM = "getitem_1"


class Cell(NamedTuple):
    """One real cell, up to its capture."""

    request: Request
    quantized: QuantizedModel
    lowered: LoweredProgram
    capture: Capture


def measured(ask: Request, lowered: LoweredProgram, resources: Resources) -> Capture:
    programs = bundle(lowered, ask.measure, store=resources.store)
    return measure(programs, (ask.device,), None, store=resources.store, farm=resources.farm)


def divided(cell: Cell, division: Division, resources: Resources) -> Cell:
    """Return the cell with its operators divided among debug programs."""
    ask, tools = cell.request, {"store": resources.store, "workers": resources.workers}
    given: Any = (cell.lowered, cell.quantized, ask.soc, lowering_options(ask), (division,))
    lowered = divide(*given, **tools)
    return Cell(ask, cell.quantized, lowered, measured(ask, lowered, resources))


def compared(cell: Cell, resources: Resources) -> Comparison:
    tolerances = of_scheme(cell.request.tolerance.operators, cell.request.scheme.name)
    options = ComparisonOptions(classifier=False, tolerances=tolerances)
    return compare(cell.lowered, cell.capture, options, store=resources.store, workers=resources.workers)


@pytest.fixture(scope="module")
def cell(resources: Resources) -> Cell:
    ask = load(["model=digits_cnn", "scheme=16a8w", "soc=SM8650", "measure.operator_samples=1"]).cells[0].request
    inputs = [InputConfig(name="x", shape=[1, 1, 16, 16])]
    quantized = quantized_model(ask, resources, "dividing_model", 4, name="dividing", inputs=inputs)
    lowered = lower(quantized, ask.soc, lowering_options(ask), store=resources.store, workers=resources.workers)
    return Cell(ask, quantized, lowered, measured(ask, lowered, resources))


@pytest.fixture(scope="module")
def halves(cell: Cell, resources: Resources) -> Cell:
    divisions = next_divisions(cell.lowered, cell.capture, 8, resources.store)
    assert divisions is not None
    (division,) = divisions
    assert division is not None
    return divided(cell, division, resources)


def test_a_debug_program_with_other_final_outputs_is_halved(cell: Cell, halves: Cell, resources: Resources) -> None:
    assert compared(cell, resources).observer_effect == "finite"
    first, second = (debug.span for debug in halves.lowered.methods[0].debug_programs)
    assert first is not None
    assert second is not None
    assert (first.first, first.end, second.end) == (0, second.first, len(cell.lowered.methods[0].operators))
    assert len({files.part for files in halves.capture.methods[0].debug}) == 2


def test_the_parts_together_log_what_one_program_logs(cell: Cell, halves: Cell) -> None:
    whole, parts = cell.lowered.methods[0], halves.lowered.methods[0]
    assert {replace(tensor, span=None) for tensor in parts.expected_tensors} == {*whole.expected_tensors}
    logged = [{tensor.identifier for tensor in parts.expected_of(debug.span)} for debug in parts.debug_programs]
    assert all(names < {tensor.identifier for tensor in whole.expected_tensors} for names in logged)


def test_the_halves_serve_if_their_final_outputs_are_those_of_the_shipping_program(
    halves: Cell, resources: Resources
) -> None:
    assert next_divisions(halves.lowered, halves.capture, 8, resources.store) is None
    comparison = compared(halves, resources)
    assert (comparison.observer_effect, comparison.observer_effect_snr_db) == ("none", None)
    statuses = {row.operator.name: row.status for row in comparison.operators}
    assert {*statuses.values()} <= {"compared", "masked", "exact", "constant", "tuple", "unused"}
    observer = [share.share for share in comparison.budget if share.cause == "observer"]
    assert observer == [0.0] * len(observer)


@pytest.mark.parametrize(("share", "float_serves"), [(0.01, True), (0.1, False)])
def test_a_float_program_that_only_rounds_in_other_places_is_not_divided(
    share: float, float_serves: bool, cell: Cell, resources: Resources
) -> None:
    store, method = resources.store, cell.capture.methods[0]
    outputs = load_arrays(store.read(method.outputs))
    for files in method.debug:
        for name, value in load_arrays(store.read(files.outputs)).items():
            outputs[name] = value * np.float32(1 + share)
    blob = store.put_bytes(save_arrays(outputs))
    capture = with_method(cell.capture, outputs=blob)
    quantized = cell.lowered.methods[0].quantized
    exported = replace(quantized.exported, outputs_eager=blob)
    right = with_method(cell.lowered, quantized=replace(quantized, exported=exported))
    assert next_divisions(right, capture, 8, store) is not None
    assert (next_divisions(right, capture, 8, store, is_float=True) is None) == float_serves


def test_with_one_debug_program_per_method_nothing_is_divided(cell: Cell, resources: Resources) -> None:
    assert next_divisions(cell.lowered, cell.capture, 1, resources.store) is None


def test_a_debug_program_that_crashes_costs_no_final_output_and_is_halved(cell: Cell, resources: Resources) -> None:
    method = cell.lowered.methods[0]
    (debug,) = method.debug_programs
    broken = resources.store.put_bytes(b"no program")
    crashing = with_method(cell.lowered, debug_programs=(replace(debug, program=broken),))
    capture = measured(cell.request, crashing, resources)
    (reason,) = capture.methods[0].failures.values()
    assert reason.startswith("the debug program ended with exit code 1 on local\n")
    assert capture.methods[0].debug == ()
    assert capture.methods[0].outputs == cell.capture.methods[0].outputs
    divisions = next_divisions(crashing, capture, 8, resources.store)
    assert divisions is not None
    assert divisions[0] is not None
    assert len(divisions[0].spans) == 2


def test_parts_that_log_other_tensors_under_the_same_name_are_audited_and_compared(resources: Resources) -> None:
    overrides = ["model=digits_cnn", "scheme=8a8w", "soc=SM8650", "measure.operator_samples=1"]
    ask = load([*overrides, "scheme.overrides=[{node: add, precision: cpu}]"]).cells[0].request
    inputs = [InputConfig(name="x", shape=[1, 4, 8, 8])]
    quantized = quantized_model(ask, resources, "two_subgraphs", 2, name="two", inputs=inputs)
    lowered = lower(quantized, ask.soc, lowering_options(ask), store=resources.store, workers=resources.workers)
    (method,) = lowered.methods
    assert method.delegated_subgraphs == 2
    border = next(row.index for row in method.operators if row.subgraph is None and row.target == "aten.add.Tensor")
    spans = Span(first=0, end=border), Span(first=border, end=len(method.operators))
    whole = Cell(ask, quantized, lowered, measured(ask, lowered, resources))
    parts = divided(whole, Division(spans=spans, unlogged=()), resources)
    names = [{row.identifier: row.quantization for row in parts.lowered.methods[0].expected_in(n)} for n in (1, 2)]
    assert any(names[1].get(name, grid) != grid for name, grid in names[0].items())
    rows, of_whole = compared(parts, resources).operators, compared(whole, resources).operators
    assert [row for row in rows if row.status == "compared"] == [row for row in of_whole if row.status == "compared"]


def test_an_operator_that_no_program_can_log_has_the_reason_in_its_row(cell: Cell, resources: Resources) -> None:
    operators = cell.lowered.methods[0].operators
    index = next(row.index for row in operators if row.name == NORM)
    alone = Span(first=index - 1, end=index + 1)  # a call and its output
    around = Span(first=0, end=index - 1), Span(first=index + 1, end=len(operators))
    without = divided(
        cell, Division(spans=around, unlogged=(Unlogged(span=alone, reason="it does not run"),)), resources
    )
    rows = [row for row in compared(without, resources).operators if row.operator.name == NORM]
    assert {(row.status, row.why) for row in rows} == {("not_dumped", "it does not run")}


def test_the_last_operator_of_a_part_that_does_not_serve_is_logged_by_none(cell: Cell, resources: Resources) -> None:
    method = cell.lowered.methods[0]
    index = next(row.index for row in method.operators if row.name == NORM)
    ends = (0, index - 1, index + 1, len(method.operators))
    spans = [Span(first=first, end=end) for first, end in itertools.pairwise(ends)]
    (debug,) = method.debug_programs
    refused = [replace(debug, span=span) for span in spans]
    refused[1] = replace(refused[1], program=None, unavailable="refused", facts=None)
    serving = with_method(cell.lowered, debug_programs=tuple(refused))
    capture = with_method(cell.capture, debug=())
    divisions = next_divisions(serving, capture, 8, resources.store)
    assert divisions == (Division(spans=(spans[0], spans[2]), unlogged=(Unlogged(span=spans[1], reason="refused"),)),)


@pytest.mark.parametrize("scheme", ["fp16", "8a8w"])
def test_a_constant_that_executorch_makes_up_belongs_to_no_part(scheme: str, resources: Resources) -> None:
    overrides = ["model=digits_cnn", f"scheme={scheme}", "soc=SM8650", "measure.operator_samples=1"]
    ask = load(overrides).cells[0].request
    inputs = [InputConfig(name="x", shape=[1, 4, 16])]
    quantized = quantized_model(ask, resources, "normed_model", 2, name="normed", inputs=inputs)
    lowered = lower(quantized, ask.soc, lowering_options(ask), store=resources.store, workers=resources.workers)
    end = len(lowered.methods[0].operators)
    spans = Span(first=0, end=end // 2), Span(first=end // 2, end=end)
    cell = Cell(ask, quantized, lowered, measured(ask, lowered, resources))
    parts = divided(cell, Division(spans=spans, unlogged=()), resources)
    assert [debug.unavailable for debug in parts.lowered.methods[0].debug_programs] == [None, None]
    assert parts.capture.methods[0].failures == {}
