"""A model in two subgraphs of the delegate, from the module to every operator's verdict and the budget."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.models import InputConfig
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.compare import compare
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.numerics.verdict import of_scheme
from qnnsweep.tasks.records import Comparison, LoweredProgram
from qnnsweep.tasks.records.options import ComparisonOptions
from tests.toolchain.small_models import quantized_model

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain

READER = "aten_view_copy_default_2"


def compared(resources: Resources, name: str, arguments: dict[str, Any]) -> tuple[LoweredProgram, Comparison]:
    ask = load(["model=digits_cnn", "scheme=16a8w", "soc=SM8650"]).cells[0].request
    inputs = [InputConfig(name="x", shape=[1, 8, 8])]
    tools: Any = {"store": resources.store, "workers": resources.workers}
    quantized = quantized_model(ask, resources, "divided_model", 4, name=name, inputs=inputs, arguments=arguments)
    lowered = lower(quantized, ask.soc, replace(lowering_options(ask), operator_samples=1), **tools)
    programs = bundle(lowered, ask.measure, store=resources.store)
    capture = measure(programs, (ask.device,), None, store=resources.store, farm=resources.farm)
    options = ComparisonOptions(classifier=False, tolerances=of_scheme(ask.tolerance.operators, ask.scheme.name))
    return lowered, compare(lowered, capture, options, **tools)


@pytest.fixture(scope="module")
def measured(resources: Resources) -> tuple[LoweredProgram, Comparison]:
    return compared(resources, "divided", {})


def test_a_layer_that_both_subgraphs_call_is_compiled_in_both(resources: Resources) -> None:
    lowered, comparison = compared(resources, "called_twice", {"is_shared": True})
    rows = [row for row in comparison.operators if row.status != "constant"]
    linear = [row for row in rows if row.operator.target == "aten.linear.default"]
    assert [(row.operator.subgraph, row.status) for row in linear] == [(0, "compared"), (1, "compared")]
    assert (lowered.methods[0].delegated_subgraphs, len(rows)) == (2, 9)
    assert {row.verdict for row in rows} <= {"within_grid", "biased", "inherited"}


def test_a_name_that_two_subgraphs_share_stands_for_a_tensor_of_each(
    measured: tuple[LoweredProgram, Comparison],
) -> None:
    lowered, comparison = measured
    assert lowered.methods[0].delegated_subgraphs == 2
    assert [(tensor.identifier, tensor.operator.subgraph) for tensor in lowered.methods[0].requantized] == [
        ("aten__to_copy_default_2@0", 0),
        ("aten__to_copy_default_2@0", 1),
    ]
    assert [(row.status, row.verdict) for row in comparison.requantized] == [("compared", "within_grid")] * 2


def test_the_delegates_of_both_subgraphs_and_the_cpu_introduce_no_error(
    measured: tuple[LoweredProgram, Comparison],
) -> None:
    rows = [row for row in measured[1].operators if row.status != "constant"]
    assert [(row.operator.target, row.operator.subgraph, row.status) for row in rows] == [
        ("aten.view_copy.default", 0, "compared"),
        ("aten.linear.default", 0, "compared"),
        ("aten.view_copy.default", 0, "compared"),
        ("aten.matmul.default", 0, "compared"),
        ("aten.erf.default", None, "compared"),
        ("aten.view_copy.default", 1, "compared"),
        ("aten.linear.default", 1, "compared"),
        ("aten.view_copy.default", 1, "compared"),
        ("aten.matmul.default", 1, "compared"),
    ]
    assert {row.verdict for row in rows} <= {"within_grid", "biased", "inherited"}


def test_a_value_that_the_cpu_computed_is_rounded_for_the_delegate_that_reads_it(
    measured: tuple[LoweredProgram, Comparison],
) -> None:
    comparison = measured[1]
    erf, reader = (row for row in comparison.operators if row.operator.name in ("aten_erf_default", READER))
    assert (erf.operator.quantization is not None, erf.parts.introduced_steps) == (True, None)  # logged as a float
    assert reader.parts.introduced_steps == 0
    at_reader = [share for share in comparison.budget if share.operator == READER and share.cause == "resolution"]
    assert [share.share is not None and share.share > 0 for share in at_reader] == [True]


def test_the_budget_explains_the_error_of_the_final_output(measured: tuple[LoweredProgram, Comparison]) -> None:
    totals = {share.cause: share.share or 0.0 for share in measured[1].budget if share.operator is None}
    assert sum(totals.values()) == pytest.approx(1)
    assert abs(totals["unexplained"]) < 1e-5  # the host adds in another order than the device
