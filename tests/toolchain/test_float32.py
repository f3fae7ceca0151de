"""Weights of 16 and of 64 bits are converted to float32, and the tables say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from narrow_models import build
from narrow_models import samples as samples_of

from qnnsweep.conf.models import DataConfig, InputConfig, MethodConfig, ModelConfig
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.records import ExportedModel
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.export import export_model
from qnnsweep.tasks.toolchain.tensors import read_tensors


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    return Store(tmp_path / "artifacts")


def exported(store: Store, arguments: dict[str, str], sampled: str, **changes: Any) -> ExportedModel:
    data = DataConfig(source="narrow_models:samples", arguments={"dtype": sampled}, count=2)
    samples: dict[str, Any] = {"calibration": data, "evaluation": data}
    model = ModelConfig(name="net", factory="narrow_models:build", arguments=arguments, **samples | changes)
    return export_model(model, store)


@pytest.mark.parametrize(
    ("dtype", "cast", "sampled", "answer"),
    [
        ("half", "", "float16", ""),
        ("half", "half", "float32", "dataclass"),
        ("half", "zeros", "float16", ""),
        ("bf16", "", "bfloat16", ""),
        ("bf16", "bf16", "float32", ""),
        ("bf16", "to", "float32", "dataclass"),
        ("bf16", "to dtype", "float32", ""),
        ("double", "", "float64", ""),
        ("double", "double", "float64", "dataclass"),
        ("float", "double", "float32", ""),
        ("float", "numpy's default", "float32", "dataclass"),
    ],
)
@pytest.mark.parametrize("states_inputs", [False, True])
def test_the_program_and_its_reference_compute_in_float32(
    dtype: str, cast: str, sampled: str, answer: str, states_inputs: bool, store: Store
) -> None:
    inputs = [InputConfig(name="x", shape=[2, 8], dtype=sampled)] if states_inputs else []
    model = exported(store, {"dtype": dtype, "cast": cast, "answer": answer}, sampled, inputs=inputs)
    was = {"half": "float16", "bf16": "bfloat16", "double": "float64", "float": "float64 in forward"}[dtype]
    assert model.model.weights == f"random, converted from {was} to float32"
    (method,) = model.methods
    assert [(spec.name, spec.dtype) for spec in (*method.inputs, *method.outputs)] == [
        ("x", "float32"),
        ("logits" if answer else "output", "float32"),
    ]
    program = torch.export.load(store.path(method.program))
    values = [node.meta["val"] for node in program.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    assert {value.dtype for value in values} == {torch.float32}
    assert {call.module_path for call in method.calls} >= {"body", "head"}
    module = build(dtype, cast if "dou" in cast or "num" in cast else "").float()
    eager = read_tensors(store, method.outputs_eager)
    for number, sample in enumerate(samples_of(2, sampled)):
        with torch.no_grad():
            torch.testing.assert_close(eager[f"{number}/0"], module(sample["inputs"]["x"].float()))


def test_samples_in_float64_for_weights_in_float32_are_refused_with_the_remedy(store: Store) -> None:
    with pytest.raises(RequestError) as raised:
        exported(store, {"dtype": "float"}, "float64")
    message, _, remedy = str(raised.value).partition("; ")
    assert message.startswith("the model net cannot run on an evaluation sample: RuntimeError: mat1 and mat2 must have")
    assert remedy == (
        "the samples are in float64, so give x.float(); or correct its forward, or the arguments of "
        "model.factory=narrow_models:build"
    )


def test_methods_share_the_converted_weights(store: Store) -> None:
    data = DataConfig(source="narrow_models:samples", count=1)
    methods = [MethodConfig(name=name, function=name, evaluation=data) for name in ("forward", "other")]
    model = exported(store, {"dtype": "bf16"}, "float32", methods=methods, calibration=None, evaluation=None)
    assert model.model.weights == "random, converted from bfloat16 to float32"
    assert [[spec.dtype for spec in method.outputs] for method in model.methods] == [["float32"], ["float32"]]
