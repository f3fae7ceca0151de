"""A model with topk, a split and outputs that nothing reads, from the module to every operator's verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

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
from qnnsweep.tasks.records import Comparison, LoweredProgram
from qnnsweep.tasks.records.options import ComparisonOptions
from tests.toolchain.small_models import quantized_model

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain


@pytest.fixture(scope="module", params=["8a8w", "16a8w"])
def ask(request: pytest.FixtureRequest) -> Request:
    return load(["model=digits_cnn", f"scheme={request.param}", "soc=SM8650"]).cells[0].request


@pytest.fixture(scope="module")
def lowered(ask: Request, resources: Resources) -> LoweredProgram:
    inputs = [InputConfig(name="image", shape=[1, 1, 8, 8])]
    quantized = quantized_model(ask, resources, "multi_output_model", 8, name="best", inputs=inputs)
    options = replace(lowering_options(ask), operator_samples=1)
    return lower(quantized, ask.soc, options, store=resources.store, workers=resources.workers)


@pytest.fixture(scope="module")
def comparison(ask: Request, lowered: LoweredProgram, resources: Resources) -> Comparison:
    programs = bundle(lowered, ask.measure, store=resources.store)
    capture = measure(programs, (ask.device,), None, store=resources.store, farm=resources.farm)
    options = ComparisonOptions(classifier=False, tolerances=of_scheme(ask.tolerance.operators, ask.scheme.name))
    return compare(lowered, capture, options, store=resources.store, workers=resources.workers)


def test_a_call_that_takes_an_output_of_the_delegate_is_no_node_on_the_cpu(lowered: LoweredProgram) -> None:
    on_cpu = {count.operator: count.not_delegated for count in lowered.methods[0].delegation if count.not_delegated}
    assert on_cpu == {}
    getitems = sum(operator.target == "getitem" for operator in lowered.methods[0].operators)
    assert {count.operator: count.delegated for count in lowered.methods[0].delegation}["getitem"] == getitems


def test_every_output_of_every_operator_has_a_row(comparison: Comparison) -> None:
    rows = {(row.operator.target, row.operator.output_index): row.status for row in comparison.operators}
    assert rows["aten.max_pool2d_with_indices.default", 1] == "unused"
    assert rows["aten.split_with_sizes_copy.default", 1] == "unused"
    picked = [row for row in comparison.operators if row.operator.target == "getitem"]
    assert {row.operator.output_index for row in picked} == {0, 1, 2}
    assert {row.status for row in picked} <= {"compared", "exact", "masked"}


def test_values_and_indices_of_topk_are_both_compared_and_neither_introduces_error(comparison: Comparison) -> None:
    names = {row.operator.name: row for row in comparison.operators}
    topk = [row for row in names.values() if "topk" in row.operator.target or row.operator.dtype in ("int64", "int32")]
    assert topk
    assert not [row.operator.name for row in comparison.operators if row.verdict == "introduced"]
    assert {row.output for row in comparison.outputs} == {"0", "1"}
