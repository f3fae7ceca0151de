"""A model that is wrong fails its cells, with its message, and never stops the other cells of a sweep."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.program import Program

MODULE = """
import torch

def refuse():
    raise ValueError("no such width")

class Narrow(torch.nn.Module):
    def forward(self, image):
        return image @ torch.zeros(3, 1)

def wide_samples(count, split):
    for _ in range(count):
        yield {"inputs": {"image": torch.zeros(1, 1, 9, 9)}}
"""
MODELS = {
    "factory_raises": "factory: bad_models:refuse",
    "forward_raises": "factory: bad_models:Narrow",
    "wrong_shape": "evaluation: {source: bad_models:wide_samples}",
    "no_module": "factory: absent_module:build",
}
ERRORS = {
    "factory_raises": "model.factory=bad_models:refuse: ValueError: no such width",
    "forward_raises": (
        "the model forward_raises cannot run on an evaluation sample: RuntimeError: mat1 and mat2 shapes cannot be "
        "multiplied (8x8 and 3x1) at `return image @ torch.zeros(3, 1)` (bad_models.py:9); correct its forward, or the "
        "arguments of model.factory=bad_models:Narrow"
    ),
    "wrong_shape": (
        "model.evaluation.source=bad_models:wide_samples: sample 0: input image is float32[1, 1, 9, 9]; "
        "model.inputs says float32[1, 1, 8, 8]"
    ),
    "no_module": (
        "model.factory=absent_module:build: No module named 'absent_module'; expected package.module:function, "
        "importable here"
    ),
}

pytestmark = pytest.mark.toolchain


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conf")
    (folder / "model").mkdir()
    (folder / "bad_models.py").write_text(MODULE)
    for name, line in MODELS.items():
        (folder / "model" / f"{name}.yaml").write_text(f"defaults: [digits_cnn]\nname: {name}\n{line}\n")
    return folder


def test_the_cells_of_wrong_models_fail_and_the_other_cells_pass(
    folder: Path, served_program: Program, tmp_path: Path
) -> None:
    artifacts = tmp_path / "artifacts"
    models = ",".join([*MODELS, "digits_cnn"])
    ran = served_program.run(
        *("run", "--json", f"--config-dir={folder}", f"model={models}", "scheme=fp32", "backend=portable"),
        *("measure.dump_operators=false", "model.evaluation.count=2", f"artifacts={artifacts}"),
    )
    assert ran.returncode == 1, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1])["outcomes"] == {"failed": 4, "passed": 1}
    cells = pd.read_parquet(artifacts / "tables" / "cells").set_index("model")
    assert cells.loc["digits_cnn", "outcome"] == "passed"
    failed = cells.drop(index="digits_cnn")
    assert set(failed["stage"]) == {"export"}
    assert set(failed["error_type"]) == {"RequestError"}
    assert failed["error"].to_dict() == ERRORS


def test_a_request_whose_only_model_is_wrong_is_refused(folder: Path, served_program: Program, tmp_path: Path) -> None:
    ran = served_program.run("run", f"--config-dir={folder}", "model=factory_raises", f"artifacts={tmp_path}/a")
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (2, f"qnnsweep: {ERRORS['factory_raises']}")


def test_a_plan_that_is_checked_has_the_same_messages_and_compiles_nothing(
    folder: Path, program: Program, tmp_path: Path
) -> None:
    models = ",".join([*MODELS, "digits_cnn"])
    artifacts = f"artifacts={tmp_path}/artifacts"
    ran = program.run("plan", "--check", "--json", f"--config-dir={folder}", f"model={models}", artifacts)
    cells = json.loads(ran.stdout)["cells"]
    assert (ran.returncode, {cell["model"]: cell["error"] for cell in cells}) == (1, ERRORS | {"digits_cnn": None})
    assert not list((tmp_path / "artifacts").glob("results/*"))
    table = program.run("plan", "--check", f"--config-dir={folder}", "model=factory_raises", artifacts).stdout
    assert table.splitlines()[-1].strip() == "1 to run, 0 impossible, 1 will fail"
