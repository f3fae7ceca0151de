"""What a factory can be, and what it can return."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from qnnsweep.conf.models import DataConfig, ModelConfig
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.models.user_function import user_function
from qnnsweep.tasks.records import ExportedMethod
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.export import export_model
from qnnsweep.tasks.toolchain.saved_program import load_program
from qnnsweep.tasks.toolchain.source_digest import code_digest
from qnnsweep.tasks.toolchain.user_code import imported

FILE = """
from dataclasses import dataclass
import torch
import helper_of_tasks

@dataclass
class Out:
    logits: torch.Tensor

class Net(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.linear, self.drop = kind, torch.nn.Linear(4, helper_of_tasks.WIDTH), torch.nn.Dropout(0.5)

    def forward(self, x):
        y = self.drop(self.linear(x))
        return Out(y) if self.kind == "dataclass" else y

def make(kind="plain"):
    net, x = Net(kind).eval(), torch.ones(2, 4)
    match kind:
        case "program": return torch.export.export(net, (x,))
        case "module of a program": return torch.export.export(net, (x,)).module()
        case "dynamic program":
            return torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=9)},))
        case "program of training": return torch.export.export(net.train(), (x,))
        case "compiled": return torch.compile(net)
        case "traced": return torch.jit.trace(net, x)
    return net

def samples(count):
    for number in range(count):
        yield {"inputs": torch.full((2, 4), float(number))}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "helper_of_tasks.py").write_text("WIDTH = 3\n")
    path = tmp_path / "tasks.py"  # a name that other packages have, too
    path.write_text(FILE)
    return path


def config(file: Path, kind: str) -> ModelConfig:
    data = DataConfig(source=f"{file}:samples", count=2)
    return ModelConfig(name="net", factory=f"{file}:make", arguments={"kind": kind}, calibration=data, evaluation=data)


def exported(file: Path, kind: str) -> tuple[ExportedMethod, torch.export.ExportedProgram]:
    store = Store(file.parent / "artifacts")
    (method,) = export_model(config(file, kind), store).methods
    return method, load_program(store, method.program)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize(
    "kind", ["plain", "dataclass", "program", "module of a program", "dynamic program", "compiled"]
)
def test_a_factory_in_a_file_returns_a_module_or_a_program(kind: str, file: Path) -> None:
    method, program = exported(file, kind)
    assert [(spec.name, spec.shape) for spec in method.inputs] == [("x", (2, 4))]
    assert [spec.shape for spec in method.outputs] == [(2, 3)]
    assert program.range_constraints == {}
    assert [(call.text, call.module_path) for call in method.calls] == [
        ("aten.linear.default(float32[2, 4], constant float32[3, 4], constant float32[3])", "linear"),
        ("aten.dropout.default(float32[2, 3], p=0.5, train=False)", "drop"),
    ]


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_a_program_of_training_is_refused_by_what_it_draws(file: Path) -> None:
    with pytest.raises(RequestError) as raised:
        exported(file, "program of training")
    assert "because it draws random numbers at `y = self.drop(self.linear(x))` (tasks.py:" in str(raised.value)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torchscript_is_refused_with_what_to_return(file: Path) -> None:
    with pytest.raises(RequestError) as raised:
        exported(file, "traced")
    assert str(raised.value) == (
        f"model.factory={file}:make: returned TorchScript, which torch.export cannot take apart; use the nn.Module "
        "that torch.jit was called with"
    )


def test_a_function_that_a_file_does_not_have_is_refused_by_the_files_name(file: Path) -> None:
    with pytest.raises(RequestError, match=r"has no attribute 'build'; expected tasks\.py:function$"):
        export_model(
            ModelConfig(name="net", factory=f"{file}:build", evaluation=DataConfig(source=f"{file}:samples")),
            Store(file.parent / "artifacts"),
        )


def test_the_code_of_a_file_and_what_it_imports_is_part_of_the_key(file: Path) -> None:
    model = config(file, "plain")
    digests = [code_digest(model)]
    file.write_text(f"{FILE}\n# changed\n")
    digests.append(code_digest(model))
    (file.parent / "helper_of_tasks.py").write_text("WIDTH = 4\n")
    digests.append(code_digest(model))
    assert len(set(digests)) == 3


BROKEN = """
import sys, torch
from torch.library import Library
library = Library("torchvision", "FRAGMENT")
@torch.library.register_fake("torchvision::nms")
def nms(dets, scores, iou_threshold): ...
COUNT = 3
"""
TRIES = """
import sys
from qnnsweep.tasks.toolchain.user_code import imported
imported("os:getcwd", "model.factory")
assert "torchvision" not in sys.modules
make = imported("net_with_torchvision:make", "model.factory")
print(make(), sys.modules["torchvision"].__file__.endswith("torchvision/__init__.py"))
"""


def test_a_torchvision_without_its_operators_is_mended_when_a_factory_imports_it(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("from torchvision import broken\nCOUNT = broken.COUNT\n")
    (tmp_path / "torchvision" / "broken.py").write_text(BROKEN)
    (tmp_path / "net_with_torchvision.py").write_text("import torchvision\ndef make(): return torchvision.COUNT\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{TRIES}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "3 True\n"


def test_a_factory_and_samples_of_one_file_share_one_module(tmp_path: Path) -> None:
    file = tmp_path / "net_and_samples.py"
    file.write_text("CALLS = []\ndef make(): CALLS.append('make')\ndef samples(): return CALLS\n")
    imported(f"{file}:make", "model.factory")()
    assert user_function(f"{file}:samples")() == ["make"]
