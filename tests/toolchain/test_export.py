"""From a model's configuration to an exported program, and every way a user's own model can be wrong."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from qnnsweep.conf.models import DataConfig, InputConfig, ModelConfig
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.records import TensorSpec
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain import entrypoints
from qnnsweep.tasks.toolchain.export import export_model
from qnnsweep.tasks.toolchain.tensors import read_tensors

if TYPE_CHECKING:
    from tests.toolchain.conftest import WorkersWith

MINE = """
import torch
from torch import nn
from qnnsweep.tasks.errors import RequestError

not_a_function = 3

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(3, width)
        self.drop = nn.Dropout(0.9)
        self.weights_origin = "random"

    def forward(self, x, scale):
        y = self.drop(self.linear(x)) * scale
        return {"logits": y, "argmax": y.argmax(-1)}

class Wordy(nn.Module):
    def forward(self, x, scale):
        return "no tensor"

def net(**arguments):
    return Net(**arguments)

def wordy():
    return Wordy()

def broken():
    return open("/no/such/weights.bin")

def picky():
    raise RequestError("model.arguments.width=0: at least 1")

def no_module():
    return [1]

def samples(count):
    for number in range(count + 5):
        x = torch.full((1, 3), float(number))
        yield {"inputs": {"scale": torch.tensor([2.0]), "x": x}, "label": number % 3, "name": f"row {number}"}

def endless(count):
    while True:
        yield {"inputs": {"x": [[1.0, 2.0, 3.0]], "scale": [1.0]}}

def none_at_all(count):
    return []

def failing(count):
    raise FileNotFoundError("no images in /data")
    yield

def odd_samples(count, kind):
    good = {"x": torch.zeros(1, 3), "scale": torch.zeros(1)}
    yield {"inputs": good}
    yield {
        "bare tensor": torch.zeros(3),
        "no inputs": {"x": torch.zeros(1, 3)},
        "inputs in a list": {"inputs": list(good.values())},
        "one missing": {"inputs": {"x": good["x"]}},
        "one too many": {"inputs": good | {"mask": good["x"]}},
        "shape": {"inputs": good | {"x": torch.zeros(2, 3)}},
        "dtype": {"inputs": good | {"x": torch.zeros(1, 3, dtype=torch.float64)}},
    }[kind]
"""
ODD = {
    "bare tensor": "is not a mapping with the key 'inputs'",
    "no inputs": "is not a mapping with the key 'inputs'",
    "inputs in a list": "has a list as 'inputs'; model.inputs names ['x', 'scale']: give a dict of these",
    "one missing": "has the inputs ['x']; model.inputs names ['x', 'scale']",
    "one too many": "has the inputs ['mask', 'scale', 'x']; model.inputs names ['x', 'scale']",
    "shape": "input x is float32[2, 3]; model.inputs says float32[1, 3]",
    "dtype": "input x is float64[1, 3]; model.inputs says float32[1, 3]",
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "artifacts")


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules of a user's own, and a working directory of the call's own."""
    names = ("users_net", "users_broken_net", "users_missing_dependency")
    (tmp_path / "users_net.py").write_text(MINE)
    (tmp_path / "users_broken_net.py").write_text("1 / 0\n")
    (tmp_path / "users_missing_dependency.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    yield
    for name in names:
        sys.modules.pop(name, None)


def config(**changes: Any) -> ModelConfig:
    defaults: dict[str, Any] = {
        "name": "my_net",
        "factory": "users_net:net",
        "inputs": [InputConfig(name="x", shape=[1, 3]), InputConfig(name="scale", shape=[1])],
        "calibration": DataConfig(source="users_net:endless", count=2),
        "evaluation": DataConfig(source="users_net:samples", count=3),
    }
    return ModelConfig(**defaults | changes)


def refused(model: ModelConfig, store: Store) -> str:
    with pytest.raises(RequestError) as raised:
        export_model(model, store)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_model_is_exported_with_its_samples_and_what_eager_pytorch_answers(store: Store) -> None:
    exported = export_model(config(arguments={"width": 5}), store)
    assert exported.methods[0].inputs == (
        TensorSpec(name="x", shape=(1, 3), dtype="float32"),
        TensorSpec(name="scale", shape=(1,), dtype="float32"),
    )
    assert exported.methods[0].outputs == (
        TensorSpec(name="logits", shape=(1, 5), dtype="float32"),
        TensorSpec(name="argmax", shape=(1,), dtype="int64"),
    )
    assert (exported.model.name, exported.model.weights) == ("my_net", "random")
    assert (exported.methods[0].sample_names, exported.methods[0].labels) == (("row 0", "row 1", "row 2"), (0, 1, 2))
    assert exported.methods[0].calibration is not None
    assert exported.methods[0].calibration_samples == 2
    calibration = read_tensors(store, exported.methods[0].calibration)
    assert {key: value.tolist() for key, value in calibration.items()} == {
        "0/x": [[1, 2, 3]],
        "0/scale": [1],
        "1/x": [[1, 2, 3]],
        "1/scale": [1],
    }
    evaluation = read_tensors(store, exported.methods[0].evaluation)
    assert sorted(evaluation) == ["0/scale", "0/x", "1/scale", "1/x", "2/scale", "2/x"]
    program = torch.export.load(store.path(exported.methods[0].program)).module()
    answers = read_tensors(store, exported.methods[0].outputs_eager)
    assert sorted(answers) == ["0/0", "0/1", "1/0", "1/1", "2/0", "2/1"]
    for sample in range(3):
        again = program(evaluation[f"{sample}/x"], evaluation[f"{sample}/scale"])
        assert torch.equal(again["logits"], answers[f"{sample}/0"])
        assert torch.equal(again["argmax"], answers[f"{sample}/1"])


def test_the_outputs_of_the_traced_program_are_stored_beside_those_of_the_module(store: Store) -> None:
    exported = export_model(config(arguments={"width": 5}), store)
    assert exported.methods[0].outputs_exported == exported.methods[0].outputs_eager


def test_the_same_request_gives_the_same_answers_though_its_weights_are_random(store: Store) -> None:
    first = export_model(config(), store)
    torch.rand(5)
    assert export_model(config(), store).methods[0].outputs_eager == first.methods[0].outputs_eager


def test_samples_without_label_or_name_are_numbered(store: Store) -> None:
    exported = export_model(config(calibration=None, evaluation=DataConfig(source="users_net:endless", count=2)), store)
    assert (exported.methods[0].sample_names, exported.methods[0].labels) == (("sample 0", "sample 1"), (None, None))
    assert (exported.methods[0].calibration, exported.methods[0].calibration_samples) == (None, 0)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("no_such_module:net", "No module named 'no_such_module'; expected package.module:function, importable here"),
        (
            "users_net:absent",
            "module 'users_net' has no attribute 'absent'; expected package.module:function, importable here",
        ),
        (
            "users_missing_dependency:net",
            "No module named 'no_such_package'; expected package.module:function, importable here",
        ),
        ("users_broken_net:net", "importing it raised ZeroDivisionError: division by zero"),
        ("users_net:not_a_function", "is a int, not a function"),
        ("users_net:no_module", "returned a list, not a torch.nn.Module"),
        ("users_net:broken", "FileNotFoundError: [Errno 2] No such file or directory: '/no/such/weights.bin'"),
        ("users_net:wordy", "the module returns no tensor"),
    ],
)
def test_a_factory_that_does_not_fit_is_refused_by_key_and_value(factory: str, message: str, store: Store) -> None:
    assert refused(config(factory=factory), store) == f"model.factory={factory}: {message}"


def test_arguments_that_the_factory_does_not_take_are_refused(store: Store) -> None:
    message = refused(config(arguments={"depth": 3}), store)
    assert message.startswith("model.factory=users_net:net: TypeError: ")
    assert "'depth'" in message


def test_a_factorys_own_refusal_comes_through_in_its_own_words(store: Store) -> None:
    assert refused(config(factory="users_net:picky"), store) == "model.arguments.width=0: at least 1"


@pytest.mark.parametrize("split", ["calibration", "evaluation"])
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("no_such_module:net", "No module named 'no_such_module'; expected package.module:function, importable here"),
        ("users_net:not_a_function", "is a int, not a function"),
        ("users_net:none_at_all", "returned no sample"),
        ("users_net:failing", "FileNotFoundError: no images in /data"),
    ],
)
def test_a_data_source_that_does_not_fit_is_refused_by_key_and_value(
    split: str, source: str, message: str, store: Store
) -> None:
    asked = config(**{split: DataConfig(source=source, count=2)})
    assert refused(asked, store) == f"model.{split}.source={source}: {message}"


@pytest.mark.parametrize(("kind", "message"), ODD.items())
def test_a_sample_that_does_not_fit_is_refused_by_its_number(kind: str, message: str, store: Store) -> None:
    data = DataConfig(source="users_net:odd_samples", arguments={"kind": kind}, count=2)
    joint = ": " if message.startswith("input ") else " "
    assert refused(config(evaluation=data), store) == (
        f"model.evaluation.source=users_net:odd_samples: sample 1{joint}{message}"
    )


def test_a_model_that_refuses_its_own_sample_is_refused_with_pytorchs_first_line(store: Store) -> None:
    message = refused(config(factory="torch.nn:Linear", arguments={"in_features": 3, "out_features": 1}), store)
    assert message.startswith("the model my_net cannot run on an evaluation sample: TypeError: ")
    assert message.endswith("; correct its forward, or the arguments of model.factory=torch.nn:Linear")


@pytest.mark.toolchain
def test_a_refusal_in_a_worker_is_the_same_refusal(workers_with: WorkersWith, store: Store) -> None:
    with pytest.raises(RequestError, match=r"^model\.factory=users_net:absent: module 'users_net' has no attribute"):
        workers_with().call("export", entrypoints.export_model, config(factory="users_net:absent"), store)
