"""The rung `lowered`: the edge graph with float weights and nothing rounded, and what it says about the graph."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load as tensors

from qnnsweep.conf.load import load
from qnnsweep.conf.models import DataConfig, InputConfig, ModelConfig
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.export import export
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.numerics.metrics import snr_db
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.records import Blob, LoweredMethod, LoweredProgram

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain


def compiled(resources: Resources, kind: str, *words: str) -> LoweredMethod:
    """Return a model of `changing_models`, lowered without a debug program."""
    data = DataConfig(source="changing_models:samples", count=2)
    shape = InputConfig(name="x", shape=[4, 8])
    model = ModelConfig(
        name=kind, factory="changing_models:build", arguments={"kind": kind}, inputs=[shape], calibration=data,
        evaluation=data,
    )  # fmt: skip
    ask = load(list(words)).cells[0].request
    tools: Any = {"store": resources.store, "workers": resources.workers}
    quantized = quantize(export(model, "", **tools), ask.scheme, ask.backend.kind, **tools)
    options = replace(lowering_options(ask), dump_operators=False)
    return lower(quantized, ask.soc if ask.backend.kind == "qnn" else None, options, **tools).methods[0]


def lowest_db(resources: Resources, actual: Blob | None, expected: Blob) -> float:
    assert actual is not None
    found, eager = (tensors(resources.store.read(blob)) for blob in (actual, expected))
    return min(snr_db(found[key], eager[key]) or np.inf for key in eager)


def test_without_any_rounding_a_quantized_graph_is_the_model(resources: Resources, lowered: LoweredProgram) -> None:
    method = lowered.methods[0]
    eager = method.exported.outputs_eager
    assert (method.lowered_note, method.graph_change) == (None, None)
    assert lowest_db(resources, method.outputs_lowered, eager) > 110
    assert lowest_db(resources, method.outputs_edge, eager) < 50


def test_a_graph_that_rounds_activations_itself_is_the_model_if_these_operators_do_nothing(
    resources: Resources,
) -> None:
    method = compiled(resources, "Chains", "backend=xnnpack", "scheme=8a8w")
    assert any(operator.target.startswith("quantized_decomposed.quantize") for operator in method.operators)
    assert (method.lowered_note, method.graph_change) == (None, None)
    assert lowest_db(resources, method.outputs_lowered, method.exported.outputs_eager) > 110
    assert lowest_db(resources, method.outputs_edge, method.exported.outputs_eager) < 60


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("AssignsASlice", "`h[:, 2:5] = 0.25`"),
        ("FillsAView", "`h[:2].masked_fill_(self.mask, 0.5)`"),
        ("AddsToAView", "`first += 1.0`"),
    ],
)
def test_what_is_written_in_place_and_lost_in_the_conversion_is_named(
    kind: str, line: str, resources: Resources
) -> None:
    change = compiled(resources, kind, "scheme=8a8w").graph_change
    assert change is not None
    head, place, tail = change.partition(" (changing_models.py:")
    assert head.partition(" dB): ")[2] == f"the conversion loses what {line}"
    assert (place != "", tail.partition(") ")[2]) == (
        True,
        "writes in place; compute a new tensor instead, for example with torch.where, torch.cat or masked_fill",
    )


@pytest.mark.parametrize("kind", ["AssignsASlice", "Chains"])
def test_a_float_scheme_rounds_nothing_so_that_the_rung_is_the_edge_graph(kind: str, resources: Resources) -> None:
    method = compiled(resources, kind, "scheme=fp16")
    assert method.outputs_lowered == method.outputs_edge
    assert (method.lowered_note, method.graph_change) == (
        "this scheme rounds nothing before the device, so the rung is the rung edge",
        None,
    )
