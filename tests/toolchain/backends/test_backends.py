"""The control groups: the same model through XNNPACK and ExecuTorch's own kernels, lowered, run and compared."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from qnnsweep.conf.load import load
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.compare import compare
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.numerics.verdict import of_scheme
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.records import Comparison, LoweredProgram
from qnnsweep.tasks.records.options import ComparisonOptions

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain


def measured(
    backend: str, scheme: str, resources: Resources, lowered: LoweredProgram
) -> tuple[LoweredProgram, Comparison]:
    """The model of `lowered`, exported once, through another backend up to the comparison."""
    words = ["model=digits_cnn", f"scheme={scheme}", f"backend={backend}", "measure.operator_samples=2"]
    (cell,) = load(words).cells
    assert cell.impossible is None
    ask, tools = cell.request, {"store": resources.store, "workers": resources.workers}
    quantized = quantize(lowered.quantized.exported, ask.scheme, ask.backend.kind, **tools)
    program = lower(quantized, None, lowering_options(ask), **tools)
    programs = bundle(program, ask.measure, store=resources.store)
    capture = measure(programs, (ask.device,), None, store=resources.store, farm=resources.farm)
    options = ComparisonOptions(classifier=True, tolerances=of_scheme(ask.tolerance.operators, ask.scheme.name))
    return program, compare(program, capture, options, **tools)


def statuses(program: LoweredProgram, comparison: Comparison) -> dict[str, Counter[str]]:
    """Operator type to how often it has which status, over the two chosen samples; `exact` counts as `compared`."""
    counts: dict[str, Counter[str]] = {}
    chosen = {chosen.sample for chosen in program.methods[0].chosen}
    for row in comparison.operators:
        if row.sample not in chosen:
            continue  # the worst sample on the device
        status = "compared" if row.status == "exact" else row.status
        counts.setdefault(row.operator.target.rpartition(".")[0] or "getitem", Counter())[status] += 1
    return counts


def worst_snr_db(comparison: Comparison, rung: str) -> float:
    rows = [row for row in comparison.outputs if row.rung == rung]
    assert len(rows) == 8
    assert {row.status for row in rows} <= {"compared", "exact"}
    return min(row.gap.snr_db for row in rows if row.gap.snr_db is not None)


def designed_equals_edge(comparison: Comparison) -> bool:
    """Return whether the rung designed equals the rung edge, as it does where the lowering recorded no grid."""
    return {row.previous_status for row in comparison.outputs if row.rung == "designed"} == {"exact"}


def agreement(comparison: Comparison) -> list[bool]:
    return [row.top1_actual == row.top1_reference for row in comparison.outputs if row.rung == "device"]


def test_xnnpack_computes_in_float_what_eager_pytorch_does(resources: Resources, lowered: LoweredProgram) -> None:
    program, comparison = measured("xnnpack", "fp32", resources, lowered)
    assert (program.backend, program.soc, program.methods[0].delegated_subgraphs, program.methods[0].compile_facts) == (
        "xnnpack",
        None,
        1,
        (),
    )
    assert worst_snr_db(comparison, "device") > 100
    assert designed_equals_edge(comparison)
    assert agreement(comparison) == [True] * 8
    assert (comparison.observer_effect, comparison.unexpected_events) == ("none", ())
    # The whole delegate is one instruction: what leaves it is seen, and nothing inside.
    assert statuses(program, comparison) == {
        "aten.convolution": {"not_dumped": 4},
        "aten._native_batch_norm_legit_no_training": {"tuple": 4, "unused": 8},
        "getitem": {"not_dumped": 4},
        "aten.relu": {"not_dumped": 4},
        "aten.max_pool2d": {"not_dumped": 2},
        "aten.view_copy": {"not_dumped": 2},
        "aten.linear": {"compared": 2},
    }
    (last, *_) = [row for row in comparison.operators if row.status in ("compared", "exact")]
    assert last.verdict in ("exact", "within_grid")
    # Whatever was hidden before it and computes; views and what takes a tuple apart do not.
    hidden = {row.name: row.target.rpartition(".")[0] for row in program.methods[0].operators}
    layer = ["aten.convolution", "aten._native_batch_norm_legit_no_training", "aten.relu"]
    assert [hidden[name] for name in last.spans] == [*layer, *layer, "aten.max_pool2d"]


def test_xnnpack_in_eight_bits_is_near_eager_pytorch(resources: Resources, lowered: LoweredProgram) -> None:
    program, comparison = measured("xnnpack", "8a8w", resources, lowered)
    assert 20 < worst_snr_db(comparison, "device") < 100
    assert 20 < worst_snr_db(comparison, "quantized") < 100
    assert designed_equals_edge(comparison)  # the pairs of quantize and dequantize are still in its edge graph
    assert agreement(comparison) == [True] * 8
    assert comparison.unexpected_events == ()
    # One handle for an operator and the pair of quantize and dequantize behind it: the pair's end is its value.
    assert statuses(program, comparison) == {
        "quantized_decomposed.dequantize_per_channel": {"constant": 6},
        "quantized_decomposed.quantize_per_tensor": {"superseded": 12},
        "quantized_decomposed.dequantize_per_tensor": {"not_dumped": 10, "compared": 2},
        "aten.convolution": {"not_dumped": 4},
        "aten.relu": {"superseded": 4},
        "aten.max_pool2d": {"superseded": 2},
        "aten.view_copy": {"superseded": 2},
        "aten.linear": {"superseded": 2},
    }


def test_portable_kernels_show_every_operator(resources: Resources, lowered: LoweredProgram) -> None:
    program, comparison = measured("portable", "fp32", resources, lowered)
    assert (program.backend, program.soc, program.methods[0].delegated_subgraphs) == ("portable", None, 0)
    assert {row.subgraph for row in program.methods[0].operators} == {None}
    assert worst_snr_db(comparison, "device") > 100
    assert designed_equals_edge(comparison)
    assert agreement(comparison) == [True] * 8
    assert (comparison.observer_effect, comparison.unexpected_events) == ("none", ())
    assert statuses(program, comparison) == {
        # The pools and the relus do not use all elements of the values before them.
        "aten.convolution": {"masked": 4},
        "aten._native_batch_norm_legit_no_training": {"tuple": 4, "unused": 8},
        "getitem": {"masked": 4, "compared": 2},
        "aten.relu": {"compared": 2, "masked": 2},
        "aten.max_pool2d_with_indices": {"tuple": 2, "unused": 2},
        # A view of memory planned in advance: no kernel runs.
        "aten.view_copy": {"not_dumped": 2},
        "aten.permute_copy": {"constant": 2},
        "aten.addmm": {"compared": 2},
    }
    compared = [row.gap.snr_db for row in comparison.operators if row.status == "compared"]
    assert min(snr for snr in compared if snr is not None) > 100
    # The host computes the very same kernels, but for the order in which floats are summed.
    compared = [row for row in comparison.operators if row.status in ("compared", "exact")]
    assert {row.verdict for row in compared} <= {"exact", "within_grid"}
    assert {row.parts.introduced_steps for row in compared} == {None}
    assert min(row.parts.introduced_snr_db for row in compared if row.parts.introduced_snr_db is not None) > 100
    assert len({tensor.identifier for tensor in program.methods[0].expected_tensors}) == len(
        program.methods[0].expected_tensors
    )
