"""Models by name through the command line: they run, say where their samples are from, and are written to files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from qnnsweep.conf.load import load
from qnnsweep.conf.models import InputConfig
from tests.flows.sweep_outputs import passed_result_of, read_table
from tests.models.checkpoints import write_checkpoint
from tests.program import Program

pytestmark = pytest.mark.toolchain
CODE = """
import torch
from mine import WIDTH

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(WIDTH, 3)

    def forward(self, features):
        return {"scores": self.layer(features).relu()}

def make():
    return Net()

def samples(count, split):
    torch.manual_seed(len(split))
    return torch.rand(count, 1, WIDTH)
"""


@pytest.fixture
def user(served_program: Program, tmp_path: Path) -> Program:
    """The program, started in a folder with the files of a user."""
    (tmp_path / "my_net.py").write_text(CODE)
    (tmp_path / "mine.py").write_text("WIDTH = 6\n")
    np.save(tmp_path / "features.npy", np.random.RandomState(0).rand(9, 6))
    torch.manual_seed(1)
    program = torch.export.export(torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU()), (torch.rand(1, 6),))
    torch.export.save(program, tmp_path / "net.pt2")
    return replace(served_program, folder=tmp_path)


ON_CPU = ("scheme=fp32", "backend=portable", "--json", "artifacts=artifacts")


def origins(user: Program, *words: str) -> dict[str, tuple[str, str]]:
    """Run a sweep and return where the samples and the weights of each model are from."""
    result = passed_result_of(user.run("run", *words))
    rows = read_table(user.folder / "artifacts", "cells", result["run_id"])
    return {row["model"]: (row["samples_origin"], row["weights"]) for row in rows}


@pytest.mark.slow
def test_a_program_and_a_model_that_ships_run_in_one_sweep(user: Program) -> None:
    found = origins(user, "model=net.pt2,digits_cnn", "model.evaluation.count=2", "measure.replay=false", *ON_CPU)
    random = "random numbers of seed 0; calibrated with random numbers of seed 1"
    assert found == {"net": (random, "unstated"), "digits_cnn": (None, "trained")}


@pytest.mark.slow
def test_a_change_of_what_a_file_imports_is_another_model_and_no_change_is_not(user: Program) -> None:
    command = ("run", "model=my_net.py:make", "samples=my_net.py:samples", *ON_CPU)
    calls = [passed_result_of(user.run(*command))["toolchain_calls"] for _ in range(2)]
    (user.folder / "mine.py").write_text("WIDTH = 5\n")
    calls.append(passed_result_of(user.run(*command))["toolchain_calls"])
    assert [count > 0 for count in calls] == [True, False, True]


@pytest.mark.slow
def test_a_model_of_timm_is_quantized_and_its_sentence_has_the_next_step(user: Program) -> None:
    words = ("model=timm:test_resnet", "+model.arguments.size=32", "samples=photographs", "model.evaluation.count=2")
    ran = user.run("run", *words, "scheme=8a8w", "soc=SM8650", "--json", "artifacts=artifacts")
    run_id = passed_result_of(ran)["run_id"]
    (row,) = read_table(user.folder / "artifacts", "cells", run_id)
    assert (row["model"], row["weights"]) == ("test_resnet", "random")
    assert row["samples_origin"] == "photographs that ship, resized to 32 and normalised as timm says"
    # Most of the error is the clipping of the input.
    assert "clipping in" in row["diagnosis"]
    assert "(a wider fixed range for " in row["diagnosis"]
    assert " and the input x: +" in row["diagnosis"]
    assert f"test_resnet: random weights, samples: {row['samples_origin']}" in ran.stdout.splitlines()


def test_a_name_that_the_library_lacks_ends_in_one_line(user: Program) -> None:
    ran = user.run("run", "model=timm:test_resne", *ON_CPU)
    line = "model=timm:test_resne: no such model in timm; did you mean test_resnet? timm.list_models() has all"
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (2, f"qnnsweep: {line}")
    ran = user.run("run", "model=my_net.py:make", "samples=features.npy", *ON_CPU, "+model.arguments.depth=2")
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1].endswith("TypeError: make() got an unexpected keyword argument 'depth'")


def test_a_file_is_written_with_the_inputs_and_runs_as_the_name_does(user: Program) -> None:
    ran = user.run("init", "model", "my_net.py:make", "samples=features.npy", "--name", "mine_1", "--json")
    assert json.loads(ran.stdout) == {
        "schema": "qnnsweep/init model/1",
        "file": "mine_1.yaml",
        "model": "mine_1",
        "inputs": [{"name": "features", "shape": [1, 6], "dtype": "float32"}],
        "next": "qnnsweep run model=mine_1.yaml scheme=8a8w soc=SM8650",
    }
    of_file = yaml.safe_load((user.folder / "mine_1.yaml").read_text())
    assert (of_file["name"], of_file["factory"]) == ("mine_1", f"{user.folder}/my_net.py:make")
    found = origins(user, "model=mine_1.yaml", *ON_CPU)
    assert found == {"mine_1": ("features.npy: 3 of 9 evaluated, 6 others calibrate", "unstated")}
    again = user.run("init", "model", "my_net.py:make", "samples=features.npy", "--name", "mine_1")
    assert (again.returncode, again.stderr) == (
        2, "qnnsweep: mine_1.yaml exists; remove it, or choose another name with --name\n",
    )  # fmt: skip


def test_a_file_is_written_to_the_folder_of_configuration(user: Program) -> None:
    ran = user.run("init", "model", "net.pt2", "--config-dir", "conf")
    assert ran.stdout.splitlines() == [
        "conf/model/net.yaml: input float32 1×6",
        "Next: qnnsweep run --config-dir conf model=net scheme=8a8w soc=SM8650",
    ]
    (cell,) = load(["model=net"], config_dirs=[user.folder / "conf"]).cells
    assert cell.request.model.inputs == [InputConfig(name="input", shape=[1, 6], dtype="float32")]


def test_the_file_of_a_language_model_means_what_its_name_means(user: Program) -> None:
    write_checkpoint(user.folder / "tiny", "llama")
    (user.folder / "texts.txt").write_text("Snow falls on the road.\nThe pump stops.\n")
    words = ("llm:tiny", "samples=texts.txt", "model.arguments.context=64", "--name", "written")
    ran = user.run("init", "model", *words)
    assert ran.stdout.splitlines() == [
        "written.yaml: the inputs of its methods follow from its arguments",
        "Next: qnnsweep run model=written.yaml scheme=8a8w soc=SM8650",
    ]
    by_name, of_file = (
        load([f"model={word}", *others]).cells[0].request.model
        for word, *others in (
            (f"llm:{user.folder}/tiny", f"samples={user.folder}/texts.txt", "model.arguments.context=64"),
            (f"{user.folder}/written.yaml",),
        )
    )
    assert replace(of_file, name="tiny") == by_name


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("digits_cnn",), "model=digits_cnn: it has a file of configuration; `qnnsweep list models` says where"),
        (
            ("net.pt2", "--name", "digits_cnn"),
            "a model that ships is named digits_cnn; choose another name with --name",
        ),
        (("net.pt2", "--name", "a/b"), "--name=a/b: letters, digits, hyphens and underscores"),
        (("net.pt2", "--config-dir=a", "--config-dir=b"), "--config-dir: give one folder; the file is written to it"),
        (("nothing.pt2",), "model=nothing.pt2: no such file: HERE/nothing.pt2"),
        (("timm:test_resne",), "model=timm:test_resne: no such model in timm; did you mean test_resnet? "),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "",
)
def test_a_wrong_use_of_init_is_one_line_and_writes_nothing(user: Program, words: tuple[str, ...], line: str) -> None:
    before = sorted(user.folder.rglob("*"))
    ran = user.run("init", "model", *words)
    assert (ran.returncode, ran.stdout) == (2, "")
    (only,) = ran.stderr.splitlines()
    assert only.startswith(f"qnnsweep: {line.replace('HERE', str(user.folder))}")
    assert sorted(user.folder.rglob("*")) == before


def test_the_list_of_models_says_what_each_is(user: Program) -> None:
    listed = {row["model"]: row for row in json.loads(user.run("list", "models", "--json").stdout)["models"]}
    assert listed["mobilenet_v2"]["about"] == "MobileNetV2"
    assert listed["minilm_l6"]["inputs"] == "input_ids int64 1×32, attention_mask int64 1×32"
    assert listed["whisper_tiny_en"]["inputs"].endswith(" others")
    assert user.run("list", "models").stdout.splitlines()[-1].startswith("and by name: timm:NAME, ")
