"""Values that depend on no input are computed at export, if this changes neither the function nor its weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from folded_models import build, samples

from qnnsweep.conf.load import load
from qnnsweep.conf.models import DataConfig, ModelConfig
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.export import export
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.export import export_model
from qnnsweep.tasks.toolchain.saved_program import load_program
from qnnsweep.tasks.toolchain.trace import traced

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

FOLDED = {
    "Sinusoidal": ["aten.slice.Tensor", "aten.mul.Tensor", "aten.sin.default", "aten.cos.default"],
    "RelativePositions": ["aten.linear.default", "aten.add.Tensor"],
    "Windows": ["aten.mul.Tensor", "aten.linear.default"],
    "SpacesEvenly": ["aten.add.Tensor", "aten.linear.default"],
    "AddsTheIdentity": ["aten.add.Tensor", "aten.linear.default"],
    "ScalesABuffer": ["aten.mul.Tensor", "aten.linear.default"],
    "ScalesAWeight": ["aten.linear.default"],
    "AddsAnAdapter": ["aten.linear.default"],
    "StandardizesAWeight": ["aten.linear.default", "aten.unsqueeze.default", "aten.conv1d.default"],
    "ConvolvesCausally": ["aten.linear.default", "aten.unsqueeze.default", "aten.conv1d.default"],
    "AddsParameters": ["aten.cat.default", "aten.linear.default"],
}
KEPT = ("TransposesAWeight", "ViewsABuffer", "LooksUpPositions", "CountsUp", "FillsAMask", "DrawsNumbers")


def operators(program: torch.export.ExportedProgram) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def config(kind: str) -> ModelConfig:
    data = DataConfig(source="folded_models:samples", count=2)
    return ModelConfig(
        name=kind, factory="folded_models:build", arguments={"kind": kind}, calibration=data, evaluation=data
    )


@pytest.mark.parametrize("kind", FOLDED)
def test_a_value_without_inputs_is_a_constant_of_the_saved_program(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "artifacts")
    (method,) = export_model(config(kind), store).methods
    program = load_program(store, method.program)
    assert operators(program)[: len(FOLDED[kind])] == FOLDED[kind]
    assert [name for name in program.constants if name.startswith("folded")] == ["folded_0"]
    for sample in samples(3, seed=1):
        with torch.no_grad():
            assert torch.equal(program.module()(sample["inputs"]), build(kind)(sample["inputs"]))


@pytest.mark.parametrize("kind", KEPT)
def test_fills_views_lookups_random_numbers_and_what_changes_in_place_stay_as_they_are(kind: str) -> None:
    module, (sample,) = build(kind), samples(1)
    inputs = (sample["inputs"],)
    with torch.no_grad():
        program = traced(kind, module, inputs, module(*inputs))
        alone = torch.export.export(module, inputs, strict=True)
    assert operators(program) == operators(alone)


def test_tables_of_indices_that_one_operator_creates_are_constants() -> None:
    module, (sample,) = build("TakesATriangle"), samples(1)
    with torch.no_grad():
        answer = module(sample["inputs"])
        program = traced("net", module, (sample["inputs"],), answer)
        assert torch.equal(program.module()(sample["inputs"]), answer)
    assert operators(program)[-1] == "aten.index.Tensor"
    assert not {"aten.tril_indices.default", "aten.select.int"} & {*operators(program)}
    assert [value.tolist() for value in program.constants.values()] == torch.tril_indices(4, 4).tolist()


def test_tensors_without_elements_are_left_out_unless_they_give_a_dtype() -> None:
    module, (sample,) = build("AppendsToAnEmptyCache"), samples(1)
    with torch.no_grad():
        answer = module(sample["inputs"])
        program = traced("net", module, (sample["inputs"],), answer)
        assert torch.equal(program.module()(sample["inputs"]), answer)
    joined = [node for node in program.graph.nodes if str(node.target) == "aten.cat.default"]
    assert [[list(part.meta["val"].shape) for part in node.args[0]] for node in joined] == [
        [[4, 8], [4, 8]],
        [[0], [4, 8]],
    ]
    assert len(program.constants) == 1


@pytest.mark.toolchain
@pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        ("Sinusoidal", "8a8w"),
        ("Sinusoidal", "fp16"),
        ("Windows", "8a8w"),
        ("SpacesEvenly", "16a8w"),
        ("CountsUp", "8a8w"),
        ("StandardizesAWeight", "8a8w"),
        ("ConvolvesCausally", "8a8w"),
        ("TransposesAWeight", "8a8w"),
        ("AddsParameters", "8a8w"),
    ],
)
def test_a_model_with_folded_values_is_compiled_as_one_subgraph(kind: str, scheme: str, resources: Resources) -> None:
    ask = load([f"scheme={scheme}", "soc=SM8650", "measure.dump_operators=false"]).cells[0].request
    tools: Any = {"store": resources.store, "workers": resources.workers}
    quantized = quantize(export(config(kind), "", **tools), ask.scheme, ask.backend.kind, **tools)
    (method,) = lower(quantized, ask.soc, lowering_options(ask), **tools).methods
    assert method.delegated_subgraphs == 1
