"""The start of the program: each command imports only the libraries that it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.program import Program

HEAVY = ("torch", "executorch", "prefect", "pandas", "pyarrow", "sklearn", "numpy")
PLANNING = ("hydra", "omegaconf", "yaml", "qnnsweep.tasks.records")
"""What is imported to plan cells."""


def imported(program: Program, folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Run the program. Return its exit code, and those of the libraries above that it has imported."""
    lines = (
        "import sys, atexit\n"
        f"names = {HEAVY + PLANNING}\n"
        "atexit.register(lambda: print('imported:', *(name for name in names if name in sys.modules)))\n"
        "from qnnsweep.flows.cli.main import main; main()"
    )
    argv = [sys.executable, "-c", lines, *arguments]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=folder, env=program.environment)
    return ran.returncode, ran.stdout.splitlines()[-1].split()[1:]


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [(("--help",), 0), (("run", "--help"), 0), (("plan", "--nonsense"), 2), (("nonsense",), 2)],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_help_and_wrong_arguments_import_no_library_that_plans_or_runs_cells(
    program: Program, tmp_path: Path, arguments: tuple[str, ...], exit_code: int
) -> None:
    assert imported(program, tmp_path, *arguments) == (exit_code, [])


def test_a_plan_writes_no_file_and_imports_no_heavy_library(program: Program, tmp_path: Path) -> None:
    assert imported(program, tmp_path, "plan", "--json", "experiment=nightly") == (0, list(PLANNING))
    assert list(tmp_path.iterdir()) == []


def test_a_plan_beside_the_results_of_earlier_runs_imports_only_what_reads_tables(
    program: Program, tmp_path: Path
) -> None:
    for folder in ("tables", "results"):
        (tmp_path / "artifacts" / folder).mkdir(parents=True)
    assert imported(program, tmp_path, "plan", "experiment=nightly") == (0, ["pyarrow", "numpy", *PLANNING])


def test_the_process_that_plans_the_stages_of_a_sweep_loads_no_library_of_the_workers(program: Program) -> None:
    ran = program.python(
        "import sys; from qnnsweep.flows.sweep import sweep; sweep.serialize_parameters({'overrides': []})\n"
        "print({'torch', 'executorch', 'pandas', 'paramiko', 'fastapi'} & {*sys.modules})"
    )
    assert (ran.stdout, ran.stderr) == ("set()\n", "")
