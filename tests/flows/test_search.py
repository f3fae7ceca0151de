"""A sweep of Hydra's users in its three forms, and a search by Optuna, with the real toolchain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.flows.small_net import write_small_net
from tests.flows.sweep_outputs import TIMES, Row, read_table
from tests.program import Program

pytestmark = [pytest.mark.toolchain, pytest.mark.slow]

EXPERIMENT = """\
# @package _global_
hydra: {sweeper: {params: {model: small_net, scheme: '8a8w,16a8w', soc: 'SM8550,SM8650', measure.cures: 0}}}
"""
SWEEP = ("model=small_net", "scheme=8a8w,16a8w", "soc=SM8550,SM8650", "measure.cures=0")


@pytest.fixture(scope="module")
def program(served_program: Program) -> Program:
    return served_program


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    write_small_net(folder)
    (folder / "experiment").mkdir()
    (folder / "experiment" / "four.yaml").write_text(EXPERIMENT)
    return folder


def rows(program: Program, mine: Path, *words: str) -> list[Row]:
    """Run the words, and return the rows of the table `cells` without what depends on the run and on time."""
    ran = program.run("run", "--json", f"--config-dir={mine}", *words)
    assert ran.returncode == 0, ran.stderr
    run_id = json.loads(ran.stdout.splitlines()[-1])["run_id"]
    cells = read_table(program.folder / "artifacts", "cells", run_id)
    return [{name: value for name, value in cell.items() if name not in {*TIMES["cells"], "run_id"}} for cell in cells]


def test_commas_multirun_and_a_file_give_equal_rows(program: Program, mine: Path) -> None:
    written = rows(program, mine, *SWEEP)
    assert len(written) == 4
    assert rows(program, mine, "-m", *SWEEP) == written
    assert rows(program, mine, "--multirun", "experiment=four") == written


def test_optuna_finds_the_best_cell_of_a_space_and_the_search_is_no_night(program: Program, mine: Path) -> None:
    pytest.importorskip("optuna", reason="the extra optuna, which requirements/dev.txt has, is not installed")
    words = ("model=small_net", "scheme=8a8w,16a8w,no_such", "model.calibration.count=1,8")
    search = ("-m", "hydra/sweeper=optuna", "hydra.sweeper.objective=final_snr_db", "hydra.sweeper.direction=maximize")
    more = (
        "measure.cures=0",
        "hydra.sweeper.n_trials=8",
        "hydra/sweeper/sampler=random",
        "hydra.sweeper.sampler.seed=1",
    )
    refused = program.run("run", f"--config-dir={mine}", *search, *more, *words)
    assert (refused.returncode, "no such scheme" in refused.stderr) == (2, True)
    words = ("model=small_net", "scheme=8a8w,16a8w", "model.calibration.count=1,8")
    ran = program.run("run", "--json", f"--config-dir={mine}", *search, *more, *words)
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout.splitlines()[-1])
    found = {tuple(trial["overrides"]): trial["objectives"]["final_snr_db"] for trial in result["trials"]}
    best = {tuple(trial["overrides"]) for trial in result["trials"] if trial["best"]}
    assert best == {max(found, key=lambda words: found[words])}
    cells, trends = (read_table(program.folder / "artifacts", name, result["run_id"]) for name in ("cells", "trends"))
    assert [cell["verb"] for cell in cells] == ["search"] * len(found)
    assert max(cell["final_snr_db"] for cell in cells) == max(found.values())
    assert trends == []
