"""`qnnsweep atlas` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.flows.sweep_outputs import assert_files_are_complete, read_table
from tests.program import Program

pytestmark = pytest.mark.toolchain

SSH = ("device.transport=ssh", "device.address=host", "device.work_folder=/srv/qnn/work", "device.python=python3")
WORDS = ("atlas", "--json", "scheme=fp16", "model.arguments.operators=[floor,median]")


def test_an_atlas_has_a_row_per_case_a_page_and_markdown_and_repeats_from_the_cache(
    served_program: Program, tmp_path: Path
) -> None:
    artifacts = tmp_path / "artifacts"
    first = served_program.run(*WORDS, f"artifacts={artifacts}")
    assert first.returncode == 0, first.stderr
    printed = json.loads(first.stdout.splitlines()[-1])
    rows = read_table(artifacts, "atlas", printed["run_id"])
    states = {row["case"]: row["state"] for row in rows}
    assert len(rows) == sum(printed["cells"][0]["states"].values())
    assert states["floor_shapes"] in ("exact", "delegated")
    assert states["floor_edge_cases"] == "not_exported"
    assert states["median_basic"] == "cpu"
    median = next(row for row in rows if row["case"] == "median_basic")
    assert "ExecuTorch's runtime lacks aten::median.out" in median["why"]
    assert (median["arch"], median["soc"], median["scheme"]) == (75, "SM8650", "fp16")
    (cell,) = read_table(artifacts, "cells", printed["run_id"])
    assert (cell["verb"], cell["outcome"]) == ("atlas", "passed")
    assert cell["diagnosis"].startswith(f"{len(rows)} cases: ")
    folder = artifacts / "runs" / printed["run_id"]
    assert "median_basic" in (folder / "atlas.html").read_text()
    assert "| median |" in (folder / "atlas.md").read_text()
    again = served_program.run(*WORDS, f"artifacts={artifacts}")
    assert again.returncode == 0, again.stderr
    assert "0 toolchain calls" in again.stdout
    repeated = read_table(artifacts, "atlas", json.loads(again.stdout.splitlines()[-1])["run_id"])
    assert [{**row, "run_id": ""} for row in repeated] == [{**row, "run_id": ""} for row in rows]
    assert_files_are_complete(artifacts)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("model=digits_cnn",), "model=digits_cnn: not a collection of cases (model.cases is null)"),
        (SSH, "device=local: the cases of an atlas run in the simulator of this machine; set no other transport"),
        (("model.arguments.operators=[ad]",), "model.arguments.operators: no such operator: ad; one of abs, "),
    ],
)
def test_a_wrong_request_gets_one_line(
    served_program: Program, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    refused = served_program.run("atlas", "scheme=fp16", *words, f"artifacts={tmp_path}")
    assert refused.returncode == 2, refused.stdout
    assert message in refused.stderr


def test_a_sweep_of_a_collection_says_which_command_measures_it(served_program: Program, tmp_path: Path) -> None:
    planned = served_program.run("plan", "--json", "model=operator_suite", "scheme=fp16", f"artifacts={tmp_path}")
    (cell,) = json.loads(planned.stdout)["cells"]
    assert cell["impossible"] == "a collection of cases (model.cases) is measured by `qnnsweep atlas`"
