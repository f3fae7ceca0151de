"""Inputs and outputs of any structure are named tensors in the exported program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from structured_models import build, samples
from torch.utils._pytree import tree_map

from qnnsweep.conf.models import DataConfig, ModelConfig
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.records import ExportedMethod, TensorSpec
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.export import check_model, export_model
from qnnsweep.tasks.toolchain.tensors import read_tensors

X = {"x": [2, 8]}
INPUTS = {
    ("Net", "x"): X,
    ("Net", "tensor"): X,
    ("Net", "array"): X,
    ("Net", "tuple"): X,
    ("Net", "named array"): X,
    ("TakesADict", "dict"): {"batch.shift.0": [2, 4], "batch.shift.1": [2, 4], "batch.x": [2, 8]},
    ("TakesClasses", "classes"): {"frozen.pixels": [4, 4], "pair.logits": [2, 8]},
    ("TakesClasses", "mode"): {"frozen.pixels": [4, 4], "pair.logits": [2, 8]},
    ("TakesAnything", "many"): {"args.0": [2, 8], "args.1": [2, 4], "args.2": [2, 4]},
    ("TakesAnything", "keywords"): {"x": [2, 8], "bias": [2, 8]},
}
OUTPUTS = {
    "ReturnsANamedTuple": {"logits": [2, 4], "features": [2, 8]},
    "ReturnsADataclass": {"logits": [2, 4], "parts.hidden.0": [2, 8], "parts.hidden.1": [2, 8]},
    "ReturnsADictWithNone": {"logits": [2, 4], "aux.features": [2, 8]},
    "ReturnsANumber": {"0": [2, 4]},
    "ReturnsALocalClass": {"0.logits": [2, 4], "1.logits": [2, 8]},
}
CONSTANT = "a value that is no tensor is a constant of the program: give it as a tensor, or the same to every sample"
FIRST = "model.evaluation.source=structured_models:samples: sample 0"
REFUSED = {
    ("Net", "misspelt", ""): "0: missing a required argument: 'x'; did you mean x? forward takes x",
    ("Net", "nothing", ""): "0 has no tensor among its inputs",
    ("Net", "too many", ""): "0: too many positional arguments; forward takes x",
    ("TakesADict", "dict", "scale"): f"1: input scale is 3.0; in {FIRST} it is 2.0; {CONSTANT}",
    ("TakesADict", "dict", "dtype"): f"1: input batch.x is float64[2, 8]; in {FIRST} it is float32[2, 8]",
    ("TakesADict", "dict", "shift"): (
        f"1 has the inputs ['batch.shift.0', 'batch.x', 'scale', 'flags.0', 'flags.1']; {FIRST} has "
        "['batch.shift.0', 'batch.shift.1', 'batch.x', 'scale', 'flags.0', 'flags.1']"
    ),
}


LEFT_OUT = {
    "ReturnsADataclass": ("count: int",),
    "ReturnsADictWithNone": ("aux.none: NoneType", "loss: NoneType"),
    "ReturnsANumber": ("1: int", "2: float"),
    "ReturnsALocalClass": ("1.features: NoneType",),
}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    return Store(tmp_path / "artifacts")


def config(kind: str, **arguments: Any) -> ModelConfig:
    source = "structured_models:samples"
    return ModelConfig(
        name=kind,
        factory="structured_models:build",
        arguments={"kind": kind},
        calibration=DataConfig(source=source, arguments={**arguments, "change": "", "seed": 1}, count=2),
        evaluation=DataConfig(source=source, arguments=arguments, count=2),
    )


def exported(model: ModelConfig, store: Store) -> ExportedMethod:
    return export_model(model, store).methods[0]


def shapes(specs: tuple[TensorSpec, ...]) -> dict[str, list[int]]:
    return {spec.name: list(spec.shape) for spec in specs}


@pytest.mark.parametrize(("kind", "form"), INPUTS)
def test_the_inputs_are_those_of_the_first_sample_in_the_order_of_the_arguments(
    kind: str, form: str, store: Store
) -> None:
    method = exported(config(kind, form=form), store)
    assert shapes(method.inputs) == INPUTS[kind, form]
    assert {spec.dtype for spec in method.inputs} == {"float32"}
    assert (method.labels, method.calibration_samples) == ((0, 1), 2)
    evaluation, eager = read_tensors(store, method.evaluation), read_tensors(store, method.outputs_eager)
    program = torch.export.load(store.path(method.program)).module()
    for number, sample in enumerate(samples(2, form)):
        inputs = tree_map(lambda leaf: torch.tensor(leaf) if isinstance(leaf, np.ndarray) else leaf, sample["inputs"])
        with torch.no_grad():
            module = build(kind)
            given = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
            expected = module(**given) if isinstance(given, dict) else module(*given)
            answer = program(*(evaluation[f"{number}/{spec.name}"] for spec in method.inputs))
        assert torch.equal(eager[f"{number}/0"], expected)
        torch.testing.assert_close(answer, expected)


@pytest.mark.parametrize("kind", OUTPUTS)
def test_the_outputs_are_named_tensors_and_the_program_needs_no_class_of_the_user(kind: str, store: Store) -> None:
    method = exported(config(kind), store)
    assert shapes(method.outputs) == OUTPUTS[kind]
    assert method.left_out == LEFT_OUT.get(kind, ())
    read = (
        "import sys, torch\n"
        "program = torch.export.load(sys.argv[1])\n"
        "answer = program.module()(torch.ones(2, 8))\n"
        "leaves = torch.utils._pytree.tree_leaves(answer)\n"
        "print([list(leaf.shape) for leaf in leaves], 'structured_models' in sys.modules)\n"
    )
    program = str(store.path(method.program))
    done = subprocess.run([sys.executable, "-c", read, program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{[*OUTPUTS[kind].values()]} False\n"


def test_operators_have_the_module_paths_of_the_users_module(store: Store) -> None:
    plain = exported(config("Net"), store)
    flat = exported(config("ReturnsADataclass"), store)
    paths = [call.module_path for call in plain.calls]
    assert paths == ["body.0", "body.1", "head"]
    assert [call.module_path for call in flat.calls] == [*paths, ""]


@pytest.mark.parametrize(("kind", "form", "change"), REFUSED)
@pytest.mark.parametrize("refuse", [check_model, "export"])
def test_a_sample_that_does_not_fit_the_first_one_is_refused_with_both(
    kind: str, form: str, change: str, refuse: Any, store: Store
) -> None:
    model = config(kind, form=form, change=change)
    with pytest.raises(RequestError) as raised:
        exported(model, store) if refuse == "export" else refuse(model)
    assert str(raised.value) == f"{FIRST[:-1]}{REFUSED[kind, form, change]}"
