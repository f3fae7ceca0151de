"""`qnnsweep atlas` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.atlas.changing_device import ChangingDevice
from tests.flows.sweep_outputs import assert_files_are_complete, read_table
from tests.program import Program

pytestmark = pytest.mark.toolchain

WORDS = ("atlas", "--json", "scheme=fp16", "model.arguments.operators=[floor,median]")


@pytest.mark.slow
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
    assert (cell["verb"], cell["outcome"]) == ("run", "passed")
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
        (("model=digits_cnn", "by_operator=false"), "by_operator=false: an atlas tries operators and no whole models"),
        (("--against=pixel",), "device=pixel: no such device; one of aihub, local"),
        (("--against=local", "device=local"), "device=local: device is given twice"),
        (("--against=local",), "--against=local: it is the simulator of this machine; name another device"),
        (("model.arguments.operators=[ad]",), "model.arguments.operators: no such operator: ad; one of abs, "),
    ],
)
def test_a_wrong_request_gets_one_line(
    served_program: Program, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    refused = served_program.run("atlas", "scheme=fp16", *words, f"artifacts={tmp_path}")
    assert refused.returncode == 2, refused.stdout
    assert message in refused.stderr


@pytest.mark.slow
def test_exactly_the_cases_that_a_device_computes_otherwise_are_named(served_program: Program, tmp_path: Path) -> None:
    device, artifacts = ChangingDevice.create(tmp_path, share=0.4), tmp_path / "artifacts"
    cases = ("scheme=8a8w,fp16", "model.arguments.operators=[floor,relu,add]", f"artifacts={artifacts}")
    ended = served_program.run("atlas", "--json", "--against=local", *device.overrides, *cases)
    assert ended.returncode == 0, ended.stderr
    printed = json.loads(ended.stdout.splitlines()[-1])
    rows = read_table(artifacts, "atlas", printed["run_id"])
    changed = device.changed(artifacts)
    executed = {(row["case"], row["scheme"]) for row in rows if row["executed_on"] == "local"}
    assert 0 < len(changed) < len(executed)
    differing = {(row["case"], row["scheme"]) for row in rows if row["simulator_equal"] not in (None, 1.0)}
    assert differing == changed
    named = {(case, cell["scheme"]) for cell in printed["cells"] for case in cell["differing"]}
    assert named == changed
    for row in rows:
        is_named = (row["case"], row["scheme"]) in changed
        assert (row["simulator_why"] is not None) == is_named
    begins = [row["simulator_why"] for row in rows if row["simulator_why"]]
    assert any(why.startswith("begins at aten.") for why in begins)
    page = (artifacts / "runs" / printed["run_id"] / "atlas.md").read_text()
    assert "## Device and simulator" in page
    assert f"{len(executed) - len(changed)} of {len(executed)} cases equal to the simulator" in ended.stdout
    again = served_program.run("atlas", "--json", "--against=local", *device.overrides, *cases, "reuse=capture")
    assert "0 toolchain calls" in again.stdout


def test_a_device_that_is_lost_leaves_no_row_that_blames_an_operator(served_program: Program, tmp_path: Path) -> None:
    here = ("device.runner=onnxruntime", "device.python=/no/python", f"device.work_folder={tmp_path / 'work'}")
    words = ("scheme=fp16", "model.arguments.operators=[floor]", f"artifacts={tmp_path / 'artifacts'}")
    ended = served_program.run("atlas", "--json", "--against=local", *here, *words)
    assert ended.returncode == 1, ended.stdout
    run_id = json.loads(ended.stdout.splitlines()[-1])["run_id"]
    assert read_table(tmp_path / "artifacts", "atlas", run_id) == []
    (cell,) = read_table(tmp_path / "artifacts", "cells", run_id)
    assert cell["outcome"] == "infrastructure"
    assert "/no/python" in cell["error"]


def test_an_atlas_tells_plan_which_operators_of_a_model_stay_on_the_cpu(
    served_program: Program, tmp_path: Path
) -> None:
    words = ("scheme=fp16", f"artifacts={tmp_path / 'artifacts'}")
    printed = served_program.run("atlas", "--case=median_basic", *words)
    assert printed.returncode == 0, printed.stderr
    model = tmp_path / "median.yaml"
    model.write_text(printed.stdout)
    without = served_program.run("plan", "--check", "--json", f"model={model}", *words)
    assert "operators" not in json.loads(without.stdout)["cells"][0]
    atlas = served_program.run("atlas", f"model={model}", *words)
    assert atlas.returncode == 0, atlas.stderr
    planned = served_program.run("plan", "--check", "--json", f"model={model}", *words)
    (operator,) = json.loads(planned.stdout)["cells"][0]["operators"]
    assert (operator["forecast"], operator["likeness"], operator["case"]) == ("cpu", "same call", "median")
    assert operator["call"].startswith("aten.median.default(float32")
    assert "aten::median.out" in operator["why"]
    for_people = served_program.run("plan", "--check", f"model={model}", *words)
    assert "will stay on the CPU in fp16 SM8650" in for_people.stdout
    not_exported = served_program.run("plan", f"model={model}", *words)
    assert "operators of median_basic: not known before the first export; --check" in not_exported.stdout


def test_a_sweep_tries_as_many_new_cases_as_its_limit_allows(served_program: Program, tmp_path: Path) -> None:
    words = ("model=operator_suite", "scheme=fp16", "model.arguments.operators=[floor,median]")
    none = served_program.run("run", "--json", *words, "limits.new_cases=1", f"artifacts={tmp_path}")
    assert none.returncode == 0, none.stderr
    rows = read_table(tmp_path, "atlas", json.loads(none.stdout.splitlines()[-1])["run_id"])
    assert {row["state"] for row in rows} == {"not_tried"}
    assert all("a later run tries the case" in row["why"] for row in rows)
