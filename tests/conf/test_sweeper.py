"""Sweeps and searches as users of Hydra write them: with commas, with `--multirun`, in a file, and with Optuna."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.load import load, load_search
from qnnsweep.conf.sweeper import Dimension, Search

TWELVE = ["model=digits_cnn,minilm_l6", "scheme=8a8w,16a8w", "soc=SM8550,SM8650,SM8750"]
SEARCH = ["hydra/sweeper=optuna", "hydra.sweeper.objective=final_snr_db"]
IN_A_FILE = """\
# @package _global_
defaults:
  - override /hydra/sweeper: optuna
  - override /hydra/sweeper/sampler: random
limits: {parallel: 1}
hydra:
  sweeper:
    objective: [final_snr_db, pte_bytes]
    direction: [maximize, minimize]
    n_trials: 7
    sampler: {seed: 3}
    params:
      scheme: 8a8w,16a8w
      model.calibration.count: range(8,33,8)
      soc: SM8650
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder with the experiments `twelve`, a sweep, and `search`, a search."""
    (tmp_path / "experiment").mkdir()
    lines = "".join(f"      {key}: {values}\n" for key, _, values in (word.partition("=") for word in TWELVE))
    sweep = f"# @package _global_\nhydra:\n  sweeper:\n    params:\n{lines}"
    (tmp_path / "experiment" / "twelve.yaml").write_text(sweep)
    (tmp_path / "experiment" / "search.yaml").write_text(IN_A_FILE)
    return tmp_path


def test_twelve_cells_in_a_file_are_those_of_the_command_line_with_or_without_hydras_own_sweeper(mine: Path) -> None:
    written = load(TWELVE)
    assert len(written.cells) == 12
    assert load(["experiment=twelve"], config_dirs=[mine]).cells == written.cells
    assert load(["hydra/sweeper=basic", *TWELVE]).cells == written.cells


def test_a_search_has_a_dimension_per_key_with_several_values() -> None:
    words = ["scheme=8a8w,16a8w", "measure.iterations=range(1,9,3)", "soc=SM8650"]
    words += ["tolerance.equal_elements=tag(log,interval(0.01,1))"]
    assert load_search([*SEARCH, "hydra.sweeper.direction=maximize", *words]) == Search(
        space=(
            Dimension(key="scheme", choices=("scheme=8a8w", "scheme=16a8w")),
            Dimension(key="measure.iterations", low=1, high=7, step=3),
            Dimension(key="tolerance.equal_elements", low=0.01, high=1.0, is_log=True),
        ),
        fixed=("soc=SM8650",),
        objectives={"final_snr_db": "maximize"},
        trials=20,
        at_once=2,
        sampler="tpe",
        sampler_arguments={"seed": None, "n_startup_trials": 10},
        storage=None,
        study_name=None,
    )


def test_an_experiment_can_be_a_search_and_the_command_line_takes_precedence(mine: Path) -> None:
    words = ["experiment=search", "soc=SM8550", "hydra.sweeper.n_trials=5"]
    assert load_search(words, config_dirs=[mine]) == Search(
        space=(
            Dimension(key="scheme", choices=("scheme=8a8w", "scheme=16a8w")),
            Dimension(key="model.calibration.count", low=8, high=32, step=8),
        ),
        fixed=("soc=SM8550", "experiment=search"),
        objectives={"final_snr_db": "maximize", "pte_bytes": "minimize"},
        trials=5,
        at_once=2,
        sampler="random",
        sampler_arguments={"seed": 3},
        storage=None,
        study_name=None,
    )
    trial = load(["experiment=search", "scheme=8a8w", "model.calibration.count=16"], config_dirs=[mine], of_trial=True)
    (request,) = [cell.request for cell in trial.cells]
    assert (request.names[:3], request.limits.parallel) == (("digits_cnn", "8a8w", "SM8650"), 1)


def test_a_sweep_is_no_search() -> None:
    assert load_search(TWELVE) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hydra/sweeper=optuna", *TWELVE], (
            "hydra.sweeper.objective: the column of the table `cells` to search by, such as final_snr_db; "
            "docs/tables.md lists them"
        )),
        ([*SEARCH, "soc=SM8650"], (
            "hydra/sweeper=optuna: no key has several values to search, such as scheme=8a8w,16a8w"
        )),
        ([*SEARCH, "hydra.sweeper.direction=up", *TWELVE], "hydra.sweeper.direction=up: one of maximize, minimize"),
        ([*SEARCH, "hydra.sweeper.direction=[maximize,minimize]", *TWELVE], (
            "hydra.sweeper.direction: one direction per objective, of which there are 1"
        )),
        ([*SEARCH, "hydra.sweeper.n_trials=0", *TWELVE], "hydra.sweeper.n_trials=0: must be 1 or more"),
        ([*SEARCH, "measure.iterations=range(4,4)"], "measure.iterations=range(4,4): it selects no value"),
    ],
)  # fmt: skip
def test_a_wrong_search_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        load_search(words)
    assert str(caught.value) == message


def test_whoever_does_not_search_refuses_a_search() -> None:
    with pytest.raises(RequestError) as caught:
        load([*SEARCH, *TWELVE])
    assert str(caught.value) == "hydra/sweeper=optuna: only `qnnsweep run` on this machine searches"
