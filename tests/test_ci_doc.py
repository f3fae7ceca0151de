"""The workflow of docs/ci.md, step by step: for a good model, for a worse one, and for one that cannot be exported."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.copies import copy_file, copy_folder
from tests.flows.small_net import write_small_net

pytestmark = [pytest.mark.toolchain, pytest.mark.slow]

ROOT = Path(__file__).parents[1]
PARTS = ("conf", "flows", "tasks", "src", "pyproject.toml", "constraints.txt", "README.md")
BRANCH = """
class Branch(nn.Module):
    def forward(self, image):
        return image if image.sum() > 0 else -image


"""


def steps() -> list[dict[str, Any]]:
    (workflow,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(), flags=re.DOTALL)
    (job,) = yaml.safe_load(workflow)["jobs"].values()
    return job["steps"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's project after the checkout, with an environment that has the packages of this one but qnnsweep."""
    folder = tmp_path_factory.mktemp("project")
    write_small_net(folder / "conf")
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            copy_folder(source, folder / "qnnsweep" / part)
        else:
            (folder / "qnnsweep").mkdir(exist_ok=True)
            copy_file(source, folder / "qnnsweep" / part)
    environment = folder / ".venv"
    venv.create(environment, with_pip=True)
    packages = next(environment.glob("lib/*/site-packages"))
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder


def run(project: Path, step: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run a step as GitHub's runner does, with the Python of the project first on the path."""
    variables = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    variables |= {"PATH": f"{project / '.venv' / 'bin'}:{os.environ['PATH']}", "CI": "true", "GITHUB_ACTIONS": "true"}
    variables |= {"PREFECT_HOME": str(project / ".prefect"), "PIP_NO_BUILD_ISOLATION": "1"}
    command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
    return subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True, check=False)


def test_the_workflow_has_at_most_ten_lines_of_steps_and_settings() -> None:
    (workflow,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(), flags=re.DOTALL)
    assert len(workflow.splitlines()) - len(["on", "jobs"]) <= 10
    assert [step["uses"].partition("@")[0] for step in steps() if "uses" in step] == [
        "actions/checkout",
        "actions/setup-python",
        "actions/cache",
    ]


def test_the_steps_pass_for_a_good_model_and_fail_for_a_worse_and_for_a_wrong_one(project: Path) -> None:
    install, sweep, report = (step for step in steps() if "run" in step)
    assert (ran := run(project, install)).returncode == 0, ran.stderr
    where = 'python -c "import qnnsweep; print(qnnsweep.__file__)"'
    assert run(project, {"run": where}).stdout.startswith(str(project))

    assert (ran := run(project, sweep)).returncode == 0, ran.stderr
    assert (ran := run(project, report)).returncode == 0, ran.stderr
    assert (project / "site" / "index.html").is_file()
    assert "::error" not in ran.stdout

    model = project / "conf" / "model" / "small_net.yaml"
    good = model.read_text()
    model.write_text(good.replace("arguments: {seed: 1}, count: 8", "arguments: {seed: 1}, count: 1"))
    assert run(project, sweep).returncode == 1
    assert run(project, report).returncode == 0
    assert "model.calibration.count 8 → 1" in (project / "site" / "index.html").read_text()

    model.write_text(good)
    code = project / "conf" / "small_net.py"
    branching = code.read_text().replace("nn.ReLU()", "Branch()")
    code.write_text(branching.replace("def small_net", f"{BRANCH}def small_net"))
    line = next(number for number, text in enumerate(code.read_text().splitlines(), 1) if "image.sum()" in text)
    ran = run(project, sweep)
    assert (ran.returncode, f"::error file=conf/small_net.py,line={line},title=qnnsweep::" in ran.stderr) == (2, True)
