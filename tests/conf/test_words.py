"""The words of a command that makes the program of a cell again."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnsweep.conf.load import load

SWEPT = "hydra: {sweeper: {params: {scheme: '8a8w,16a8w', device: 'local,second', measure.iterations: '2'}}}\n"
EXPERIMENTS = {
    "sets_the_model": ("model: {calibration: {count: 8}}\n", ["experiment=sets_the_model"]),
    "chooses_the_model": ("defaults: [{override /model: minilm_l6}]\n", ["experiment=chooses_the_model"]),
    "sets_a_scheme": (
        f"scheme: {{per_channel_conv: false}}\n{SWEPT}",
        ["device=local", "experiment=sets_a_scheme", "measure.iterations=2"],
    ),
    "sets_no_key_of_the_program": (f"measure: {{cures: 2}}\n{SWEPT}", []),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / "second.yaml").write_text("name: second\n")
    for name, (text, _) in EXPERIMENTS.items():
        (tmp_path / "experiment" / f"{name}.yaml").write_text(f"# @package _global_\n{text}")
    return tmp_path


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_that_sets_a_key_of_the_program_is_one_of_the_words(folder: Path, name: str) -> None:
    _, expected = EXPERIMENTS[name]
    cell = load([f"experiment={name}", "soc=SM8550"], config_dirs=[folder]).cells[0]
    words = [word for word in cell.request.program_words if not word.startswith(("scheme=", "soc="))]
    assert words == expected


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_words_and_the_names_compose_the_program_of_each_cell(folder: Path, name: str) -> None:
    for cell in load([f"experiment={name}", "soc=SM8550,SM8650"], config_dirs=[folder]).cells:
        asked = cell.request
        names = {"model": asked.model.name, "scheme": asked.scheme.name, "soc": asked.soc.name}
        given = dict(word.split("=", 1) for word in asked.program_words)
        (again,) = load([f"{key}={value}" for key, value in (names | given).items()], config_dirs=[folder]).cells
        made = (again.request.model, again.request.scheme, again.request.soc, again.request.backend)
        assert made == (asked.model, asked.scheme, asked.soc, asked.backend)
