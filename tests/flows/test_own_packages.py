"""A model, a source and a metric in packages of the user's that are named tasks, conf and flows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.copies import copy_file, copy_folder
from tests.flows.sweep_outputs import passed_result_of, read_table
from tests.program import Program

pytestmark = pytest.mark.toolchain
ROOT = Path(__file__).parents[2]
MODULES = {
    "tasks/nets.py": """
from torch import nn
from conf.weights import SEED
import torch


def net():
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())
    model.weights_origin = "random"
    return model.eval()
""",
    "conf/weights.py": "SEED = 3\n",
    "conf/data.py": """
import torch


def noise(count):
    for index in range(count):
        yield {"inputs": {"image": torch.full((1, 1, 4, 4), index / count)}, "name": f"noise {index}"}
""",
    "flows/measures.py": """
import torch


def largest(actual, reference):
    return float((actual - reference).abs().max())
""",
    "model/net.yaml": """
name: net
factory: tasks.nets:net
inputs: [{name: image, shape: [1, 1, 4, 4]}]
calibration: {source: conf.data:noise, count: 4}
evaluation: {source: conf.data:noise, count: 2}
""",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with regular packages of these names, which is a folder for `--config-dir` too."""
    folder = tmp_path / "project"
    for name, text in MODULES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for package in ("tasks", "conf", "flows"):
        (folder / package / "__init__.py").write_text("")
    return folder


def test_packages_of_the_user_named_tasks_conf_and_flows_are_the_ones_that_are_used(
    served_program: Program, project: Path, tmp_path: Path
) -> None:
    ran = served_program.run(
        "run", "model=net", "scheme=fp16", "soc=SM8650", "measure.metrics=[flows.measures:largest]",
        f"--config-dir={project}", f"--artifacts={tmp_path / 'artifacts'}", "--json",
    )  # fmt: skip
    run_id = passed_result_of(ran)["run_id"]
    metrics = read_table(tmp_path / "artifacts", "metrics", run_id)
    assert {row["metric"] for row in metrics} == {"flows.measures:largest"}
    assert all(0 <= row["value"] < 0.01 for row in metrics if row["value"] is not None)


def test_a_change_of_a_module_that_such_a_model_imports_is_a_change_of_the_model(
    served_program: Program, project: Path, tmp_path: Path
) -> None:
    command = (
        "run", "model=net", "scheme=fp16", "soc=SM8650",
        f"--config-dir={project}", f"--artifacts={tmp_path / 'artifacts'}", "--json",
    )  # fmt: skip
    first = passed_result_of(served_program.run(*command))
    same = passed_result_of(served_program.run(*command))
    (project / "conf" / "weights.py").write_text("SEED = 4\n")
    changed = passed_result_of(served_program.run(*command))
    assert (first["toolchain_calls"] > 0, same["toolchain_calls"], changed["toolchain_calls"] > 0) == (True, 0, True)


def test_the_wheel_installs_one_package_and_nothing_else(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    options = ("--no-deps", "--no-build-isolation", "--no-index")
    source = tmp_path / "source"  # a build leaves folders behind
    for name in ("conf", "flows", "tasks", "src"):
        copy_folder(ROOT / name, source / name)
    for name in ("pyproject.toml", "README.md"):
        copy_file(ROOT / name, source)
    subprocess.run([*pip, "wheel", *options, f"--wheel-dir={tmp_path}", str(source)], check=True, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    target = tmp_path / "site-packages"
    subprocess.run([*pip, "install", *options, f"--target={target}", str(wheel)], check=True, cwd=tmp_path)
    names = {path.name for path in target.iterdir()} - {"bin"}
    assert names == {"qnnsweep", f"{wheel.name.split('-py3')[0]}.dist-info"}
    assert {path.name for path in (target / "qnnsweep").iterdir()} >= {"__init__.py", "conf", "flows", "tasks"}
    code = "import sys, qnnsweep.flows.cli.main; print(qnnsweep.__file__)"
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
    )
    assert ran.stdout.strip() == str(target / "qnnsweep" / "__init__.py")
    tracked = {path.relative_to(ROOT) for path in (ROOT / "conf").rglob("*.yaml")}
    installed = {path.relative_to(target / "qnnsweep") for path in (target / "qnnsweep" / "conf").rglob("*.yaml")}
    assert installed == tracked
