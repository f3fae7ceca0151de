"""The exported and the quantized graph as references: which nodes an operator stands for, and which are unclaimed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.models import DataConfig, InputConfig, ModelConfig
from qnnsweep.conf.schema import Request
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.compare import compare
from qnnsweep.tasks.comparison.evidence import Evidence
from qnnsweep.tasks.comparison.operators import OperatorComparer
from qnnsweep.tasks.export import export
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.numerics.verdict import of_scheme
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.records import Capture, Comparison, ErrorParts, Gap, LoweredProgram, OperatorComparison
from qnnsweep.tasks.records.options import ComparisonOptions
from qnnsweep.tasks.records.vocabulary import COMPARED, OPERATOR_STATUSES
from tests.sample_records import with_method

import counterpart_links  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain

BOTH = ("exported", "quantized")


@pytest.fixture(scope="module")
def asked(request_8a8w: Request, resources: Resources, lowered: LoweredProgram) -> LoweredProgram:
    """`lowered` again, with both references."""
    ask, tools = request_8a8w, {"store": resources.store, "workers": resources.workers}
    return lower(lowered.quantized, ask.soc, replace(lowering_options(ask), references=BOTH), **tools)


@pytest.fixture(scope="module")
def comparison(request_8a8w: Request, resources: Resources, asked: LoweredProgram, capture: Capture) -> Comparison:
    """The capture of `lowered`: the programs are the same."""
    options = ComparisonOptions(
        classifier=True,
        tolerances=of_scheme(request_8a8w.tolerance.operators, request_8a8w.scheme.name),
        metrics=("l1",),
        references=BOTH,
    )
    return compare(asked, capture, options, store=resources.store, workers=resources.workers)


def of(comparison: Comparison, reference: str, position: int = 0) -> dict[str, OperatorComparison]:
    """Return the rows of a captured sample, by the names of the operators. `position`: of the sample."""
    sample = sorted({row.sample for row in comparison.operators})[position]
    rows = [row for row in comparison.other_references if (row.reference, row.sample) == (reference, sample)]
    rows_by_name = {row.operator.name: row for row in rows}
    assert len(rows_by_name) == len(rows)
    return rows_by_name


def test_without_being_asked_a_lowering_keeps_no_other_reference(
    lowered: LoweredProgram, asked: LoweredProgram
) -> None:
    assert lowered.methods[0].references == ()
    assert [reference.name for reference in asked.methods[0].references] == ["exported", "quantized"]
    # No two compilations are equal to the bit: the programs have stamps in them.

    def plain(record: LoweredProgram) -> LoweredProgram:
        unstamped: Any = {"program": None, "bundled_program": None, "made": ()}
        return with_method(replace(record, **unstamped), references=(), debug_programs=(), etrecord=None)

    assert plain(asked) == plain(lowered)


def test_what_is_asked_beside_the_edge_graph_changes_nothing_of_it(
    request_8a8w: Request, resources: Resources, lowered: LoweredProgram, capture: Capture, comparison: Comparison
) -> None:
    options = ComparisonOptions(
        classifier=True, tolerances=of_scheme(request_8a8w.tolerance.operators, request_8a8w.scheme.name)
    )
    plain = compare(lowered, capture, options, store=resources.store, workers=resources.workers)
    assert plain.other_references == ()
    assert replace(comparison, other_references=(), metrics=()) == plain


def test_one_comparison_has_the_rows_of_all_references_and_the_metrics_of_all_operators(comparison: Comparison) -> None:
    """The metrics and the rows of other references come from the samples, like the rows of the edge graph."""
    compared = [(row.sample, row.operator.name) for row in comparison.operators if row.status in COMPARED]
    assert len(compared) > 2
    assert [(value.sample, value.operator) for value in comparison.metrics if value.operator] == compared
    assert {row.reference for row in comparison.other_references} == set(BOTH)


def test_the_comparison_of_a_sample_does_not_depend_on_what_was_compared_before(
    resources: Resources, asked: LoweredProgram, capture: Capture
) -> None:
    options = ComparisonOptions(classifier=True, replay=False, metrics=("l1",), references=BOTH)
    evidence = Evidence(asked.methods[0], capture.methods[0], resources.store)
    comparer = OperatorComparer(asked.methods[0], evidence, options, {}, {}, {}, resources.store, worst=(0, 0))
    first, second = ([*comparer.samples(evidence.samples)] for _ in range(2))
    assert first == second
    assert [len(sample.metrics) for sample in first] == [7, 7]


def test_the_values_of_a_sample_that_the_lowering_did_not_choose_are_those_that_it_would_have_stored(
    resources: Resources, asked: LoweredProgram, capture: Capture
) -> None:
    records = asked.methods[0], capture.methods[0]
    same, others = resources.workers.call("compare", counterpart_links.computed_values, *records, resources.store).value
    assert len(same) > 10
    assert others == []


def test_every_operator_has_a_row_for_each_reference_and_so_has_each_node_that_none_stands_for(
    asked: LoweredProgram, comparison: Comparison
) -> None:
    assert [(row.sample, row.reference, row.operator) for row in comparison.other_references] == [
        (sample, reference.name, operator)
        for sample in sorted({row.sample for row in comparison.operators})
        for reference in asked.methods[0].references
        for operator in (*asked.methods[0].operators, *reference.unclaimed)
    ]
    for row in comparison.other_references:
        assert row.status in OPERATOR_STATUSES
        assert (row.gap.snr_db is not None) == (row.status in COMPARED)
        assert (row.verdict, row.parts) == ("blind", ErrorParts())
    exported, quantized = asked.methods[0].references
    assert exported.unclaimed == ()
    assert {node.target for node in quantized.unclaimed} == {
        "quantized_decomposed.quantize_per_tensor.default",
        "quantized_decomposed.dequantize_per_tensor.default",
    }


def test_each_operator_is_compared_with_the_last_of_the_float_programs_nodes_that_it_stands_for(
    comparison: Comparison,
) -> None:
    rows = of(comparison, "exported")
    assert {name: row.nodes for name, row in rows.items() if row.status in COMPARED} == {
        "aten_convolution_default": ("conv2d", "batch_norm"),
        "aten_relu_default": ("relu",),
        "aten_convolution_default_1": ("conv2d_1", "batch_norm_1"),
        "aten_relu_default_1": ("relu_1",),
        "getitem": ("max_pool2d",),
        "aten_view_copy_default": ("flatten",),
        "aten_linear_default": ("linear",),
    }
    # 34.6 to 42.7 dB were seen: what eight bits lose. A batch norm left out would be at 1 dB.
    assert all((row.gap.snr_db or 0) > 30 for row in rows.values() if row.status in COMPARED)


@pytest.mark.parametrize("position", [0, 1])
def test_the_last_operator_is_as_far_from_the_float_program_as_the_final_output_is(
    position: int, comparison: Comparison
) -> None:
    sample = sorted({row.sample for row in comparison.operators})[position]
    (final,) = [row for row in comparison.outputs if (row.rung, row.sample) == ("device", sample)]
    assert of(comparison, "exported", position)["aten_linear_default"].gap.snr_db == pytest.approx(
        final.gap.snr_db, rel=1e-5
    )


def test_an_operator_of_the_quantized_graph_is_itself_and_not_what_rounds_it(comparison: Comparison) -> None:
    rows = of(comparison, "quantized")
    assert rows["aten_convolution_default"].nodes == ("conv2d",)
    assert rows["aten_linear_default"].nodes == ("linear",)
    ratios = [row.gap.snr_db for row in rows.values() if row.gap.snr_db is not None]
    assert len(ratios) == 7
    assert min(ratios) > 30


def test_what_no_device_shows_says_why_before_it_says_what_it_stands_for(
    request_8a8w: Request, resources: Resources, asked: LoweredProgram, capture: Capture
) -> None:
    """The relu is not announced: nothing that is logged is its value."""
    expected = tuple(tensor for tensor in asked.methods[0].expected_tensors if "relu_default@" not in tensor.identifier)
    blind = with_method(asked, expected_tensors=expected)
    options = ComparisonOptions(
        classifier=True,
        tolerances=of_scheme(request_8a8w.tolerance.operators, request_8a8w.scheme.name),
        replay=False,
        references=BOTH,
    )
    comparison = compare(blind, capture, options, store=resources.store, workers=resources.workers)
    row = of(comparison, "exported")["aten_relu_default"]
    assert (row.status, row.nodes, row.gap) == ("not_dumped", ("relu",), Gap())


Links = dict[str, tuple[dict[str, counterpart_links.Linked], list[str]]]
SHAPES = {"attention": [1, 6, 16], "folded": [1, 2, 6, 6]}


@cache
def links(resources: Resources, name: str, scheme: str, backend: str) -> Links:
    """What the operators of a model of decomposed_models.py stand for."""
    (cell,) = load(["model=digits_cnn", f"scheme={scheme}", f"backend={backend}", "soc=SM8650"]).cells
    ask = cell.request
    tools: Any = {"store": resources.store, "workers": resources.workers}
    data = DataConfig(source="decomposed_models:samples", count=8, arguments={"name": name})
    inputs = [InputConfig(name="x", shape=SHAPES[name])]
    model = ModelConfig(
        name=name, factory=f"decomposed_models:{name}", inputs=inputs, calibration=data, evaluation=data
    )
    exported = export(model, "", **tools)
    quantized = quantize(exported, ask.scheme, ask.backend.kind, **tools)
    work = (quantized, ask.scheme, ask.backend.kind, resources.store)
    return resources.workers.call("lower", counterpart_links.linked, *work).value


def standing(rows: dict[str, counterpart_links.Linked]) -> dict[str, tuple[str, ...]]:
    return {name: row.nodes for name, row in rows.items() if row.status is None}


CLAIMS = {
    # What an operator stands for is what it computes: to the bit or nearly in float, and but for the rounding else.
    ("fp32", "portable"): 120,
    ("fp16", "qnn"): 120,
    ("8a8w", "xnnpack"): 25,
    ("8a8w", "qnn"): 25,
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("scheme", "backend"), CLAIMS)
def test_no_operator_stands_for_what_it_does_not_compute(
    name: str, scheme: str, backend: str, resources: Resources
) -> None:
    linked = links(resources, name, scheme, backend)
    for rows, _ in linked.values():
        far = {name: row.snr_db for name, row in rows.items() if row.status is None}
        assert len(far) >= 9
        assert {name: ratio for name, ratio in far.items() if ratio < CLAIMS[scheme, backend]} == {}
        assert {row.status for row in rows.values()} <= {None, "superseded", "ambiguous", "shape_differs", "no_node"}


def test_a_node_that_became_several_operators_has_its_value_in_the_one_that_leaves_them(resources: Resources) -> None:
    rows, unclaimed = links(resources, "attention", "fp32", "portable")["exported"]
    inside = {name: row.status for name, row in rows.items() if row.nodes == ("scaled_dot_product_attention",)}
    assert len(inside) > 15
    assert [status for status in inside.values() if status is None] == [None]
    assert set(inside.values()) == {None, "superseded"}
    assert set(standing(rows).values()) >= {
        ("layer_norm",), ("linear",), ("split",), ("softmax",), ("gelu",), ("add",),
    }  # fmt: skip
    assert unclaimed == []


def test_where_the_quantizer_takes_a_node_apart_without_a_trace_nobody_stands_for_it(resources: Resources) -> None:
    rows, unclaimed = links(resources, "attention", "8a8w", "qnn")["exported"]
    assert unclaimed == ["scaled_dot_product_attention"]
    assert {rows[name].status for name in ("aten_bmm_default", "aten__safe_softmax_default")} == {"no_node"}
    # What they read may be a part of the same node.
    assert rows["aten_permute_copy_default"].status == "ambiguous"
    # The backend wants a matrix: the norm's own value is the one in the norm's own shape.
    assert (rows["getitem"].status, rows["getitem"].nodes) == (None, ("layer_norm",))
    assert rows["aten_view_copy_default"].status == "shape_differs"


def test_a_batch_norm_that_became_part_of_a_convolution_is_kept_in_its_set(resources: Resources) -> None:
    rows, unclaimed = links(resources, "folded", "8a8w", "qnn")["exported"]
    assert standing(rows) == {
        "aten_convolution_default": ("conv2d", "batch_norm"),
        "aten_hardtanh_default": ("hardtanh_",),
        "aten_convolution_default_1": ("conv2d_1",),
        "aten_hardswish_default": ("hardswish_",),
        "aten_adaptive_avg_pool2d_default": ("adaptive_avg_pool2d",),
        "aten_view_copy_default": ("flatten",),
        "aten_linear_default": ("linear",),
        "getitem": ("split",),
        "getitem_1": ("split",),
        "aten_relu_default": ("relu_",),
        "aten_add_tensor": ("add",),
    }
    assert unclaimed == ["dropout", "clone"]


def test_what_rounds_stands_for_no_node_of_the_float_program(resources: Resources) -> None:
    linked = links(resources, "folded", "8a8w", "xnnpack")
    rounding = [name for name in linked["exported"][0] if "quantize_per_tensor" in name]
    assert len(rounding) > 10
    assert {linked["exported"][0][name].status for name in rounding} == {"no_node"}
    assert {linked["quantized"][0][name].status for name in rounding} == {None}
