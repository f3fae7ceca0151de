"""`qnnsweep repro`: the folder shows an operator's error where qnnsweep is not installed, and its twin is right."""

from __future__ import annotations

import json
import os
import shutil
import signal
import site
import socket
import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from tests.flows.sign_model import write_sign_model
from tests.flows.test_handed_on import told
from tests.program import Program

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]

CELL = "sign_net/8a8w/SM8650"
CONVOLUTION = "aten_convolution_default"
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Written:
    """A run of the model, and the folder of its reproducer with the object that the command printed."""

    artifacts: Path
    folder: Path
    answer: dict[str, object]
    introduced_steps: float


@pytest.fixture(scope="module")
def artifacts(served_program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sign")
    write_sign_model(folder / "conf")
    overrides = [
        "model=sign_net",
        "scheme=8a8w,fp32",
        "soc=SM8650",
        "measure.cures=0",
        f"artifacts={folder / 'artifacts'}",
    ]
    ran = served_program.run("run", f"--config-dir={folder / 'conf'}", *overrides)
    assert ran.returncode == 0, ran.stderr
    return folder / "artifacts"


@pytest.fixture(scope="module")
def written(program: Program, artifacts: Path) -> Written:
    """The reproducer, after a first attempt that was interrupted while a program was tried."""
    folder = artifacts.parent / "reproducer"
    arguments = ("repro", CELL, f"--to={folder}", "--json", f"artifacts={artifacts}")
    interrupted = program.start(*arguments)
    assert interrupted.stderr is not None
    for line in interrupted.stderr:
        if "the error is" in line:
            break
    os.killpg(interrupted.pid, signal.SIGINT)
    _, rest = interrupted.communicate(timeout=60)
    assert (interrupted.returncode, folder.exists()) == (130, False), rest
    assert "interrupted; run the same command again to continue" in rest

    ran = program.run(*arguments)
    assert ran.returncode == 0, ran.stderr
    operators = pd.read_parquet(artifacts / "tables" / "operators")
    (steps,) = operators.loc[operators["verdict"] == "introduced", "introduced_steps"]
    return Written(artifacts, folder, json.loads(ran.stdout.splitlines()[-1]), float(steps))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has all packages of this one except qnnsweep."""
    root = tmp_path_factory.mktemp("environment")
    venv.create(root, symlinks=True)
    (packages,) = (root / "lib").glob("python*/site-packages")
    for path in Path(site.getsitepackages()[0]).iterdir():
        if "qnnsweep" not in path.name and "__editable__" not in path.name:
            (packages / path.name).symlink_to(path)
    return root / "bin" / "python"


def test_the_folder_is_complete(written: Written) -> None:
    assert written.introduced_steps > 100
    assert written.answer == {
        "schema": "qnnsweep/repro/1",
        "folder": str(written.folder),
        "cell": f"{CELL}/qnn/local",
        "operator": CONVOLUTION,
        "sample": 0,
        "operators": [CONVOLUTION],
        "error": written.introduced_steps,
        "cell_error": written.introduced_steps,
        "twin": "the 32-bit bias of channel 3 is limited to ±2³⁰ (it is -2147483648)",
        "twin_error": written.answer["twin_error"],
        "recording": None,
        "size_bytes": sum(file.stat().st_size for file in written.folder.rglob("*") if file.is_file()),
    }
    assert int(str(written.answer["size_bytes"])) < MIB
    assert {str(file.relative_to(written.folder)) for file in written.folder.rglob("*") if file.is_file()} == {
        "REPORT.md",
        "constants-twin.npz",
        "constants.npz",
        "environment.txt",
        "expected-twin.npy",
        "expected.npy",
        "inputs.npz",
        "measured.npy",
        "repro.py",
        "saver_output/params.bin",
        "saver_output/saver_output.c",
        "used.npy",
    }
    assert sorted(path.name for path in written.folder.parent.iterdir()) == ["artifacts", "conf", "reproducer"]


def test_the_folder_tells_nothing_of_its_maker(written: Written) -> None:
    maker = [str(written.folder.parent), str(Path.home()), str(Path(__file__).parents[3]), site.getsitepackages()[0]]
    maker += [socket.gethostname()] if len(socket.gethostname()) > 6 else []
    assert told([written.folder], maker) == []


def test_the_report_has_the_headings_of_executorchs_bug_form(written: Written) -> None:
    lines = (written.folder / "REPORT.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("### ")] == ["### 🐛 Describe the bug", "### Versions"]
    assert lines[0] == (
        f"# `aten.convolution.default` on the HTP simulator (SM8650) differs by {written.introduced_steps!r} "
        "steps of its grid"
    )
    assert "executorch: 1.5.1" in lines


def test_the_annotation_for_github_is_at_the_line_of_the_model_that_introduces_the_error(
    program: Program, artifacts: Path
) -> None:
    module = artifacts.parent / "conf" / "sign_net.py"
    (line,) = (number for number, text in enumerate(module.read_text().splitlines(), 1) if "self.conv(" in text)
    ran = program.run("report", "--format", "github", f"artifacts={artifacts}")
    place = f"file={module.name},line={line},title=The device computes {CONVOLUTION} differently"
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(f"::warning {place}::{CONVOLUTION} in {CELL}/qnn/local: introduces an error, ")
    assert ran.stdout.count("\n") == 1


def test_another_environment_gives_the_same_number_to_the_last_bit(
    written: Written, python: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(written.folder, tmp_path / "unpacked")

    def run(*words: str) -> tuple[int, str]:
        ran = subprocess.run([python, "-P", *words], cwd=folder, env={}, capture_output=True, text=True, check=False)
        return ran.returncode, ran.stdout

    without = "import importlib.util as u; print([n for n in ('tasks', 'conf', 'flows') if u.find_spec(n)])"
    assert run("-c", without) == (0, "[]\n")
    assert run("repro.py") == (1, f"{written.introduced_steps!r}\n")
    assert run("repro.py", "--twin") == (0, f"{written.answer['twin_error']!r}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            f"{CELL} aten_hardtanh_default",
            "OPERATOR=aten_hardtanh_default: introduces no error (verdict inherited); WRONG",
        ),
        (f"{CELL} absent", "OPERATOR=absent: no such operator; WRONG; `qnnsweep list operators` lists them"),
        (
            "sign_net/fp32/SM8650",
            "CELL=sign_net/fp32/SM8650: nothing was captured of this cell; see its row in the report",
        ),
        ("absent", f"CELL=absent: no cell of run RUN; write one of {CELL}/qnn/local, sign_net/fp32/SM8650/qnn/local"),
        (f"{CELL} --to=.", "--to=.: exists already; name another folder, or remove it"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(program: Program, artifacts: Path, words: str, message: str) -> None:
    ran = program.run("repro", *words.split(), f"artifacts={artifacts}")
    (run,) = (path.name for path in (artifacts / "runs").iterdir() if path.is_dir())
    wrong = f"operators that introduce error: {CONVOLUTION}"
    expected = message.replace("RUN", run).replace("WRONG", wrong)
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"qnnsweep: {expected}\n")


def test_a_cell_is_simulated_as_its_run_has_designed_it(program: Program, artifacts: Path) -> None:
    ran = program.run("simulate", CELL, "--json", f"artifacts={artifacts}")
    assert ran.returncode == 0, ran.stderr
    outputs = pd.read_parquet(artifacts / "tables" / "outputs")
    designed = outputs[(outputs["rung"] == "designed") & (outputs["scheme"] == CELL.split("/")[1])]
    simulated = json.loads(ran.stdout)
    assert simulated["samples"] == designed["sample"].nunique()
    assert simulated["snr_db"] == designed["snr_db"].min()
