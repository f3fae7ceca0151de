"""The cells that a run keeps for another comparison are values: code and folders come from the command line alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.recompare import recorded
from qnnsweep.flows.cells.graph import comparison_options
from qnnsweep.flows.recompare import planned
from qnnsweep.flows.runs.results import write_rows
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.storage.store import Store
from tests.sample_tables import RUN, cell, table

SWEPT = ("model=digits_cnn,minilm_l6", "scheme=8a8w,fp16", "soc=SM8650,SM8350", "tolerance.final_snr_db={8a8w:7}")
PLANTED = "planted_in_a_store:Thing"
MODULE = "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\nclass Thing: ...\n"


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module that leaves a file beside it when it runs. Python can import it."""
    (tmp_path / "folder" / "model").mkdir(parents=True)
    (tmp_path / "folder" / "planted_in_a_store.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "folder")
    monkeypatch.delitem(sys.modules, "planted_in_a_store", raising=False)
    return tmp_path / "folder"


def store_of(tmp_path: Path, cells: dict[str, Any], *command: str) -> Store:
    """Return a store with a run that keeps these cells."""
    store = Store.at(str(tmp_path / "store"))
    store.check_writable()
    run = replace(RUN, cells=json.dumps(cells), command=("qnnsweep", "run", *command))
    write_rows(run, {"cells": table("cells", [cell("digits_cnn", "8a8w", "SM8650")])}, store)
    return store


def cells_of(*overrides: str) -> dict[str, Any]:
    return json.loads(json.dumps(recorded(load(overrides))))


def test_a_run_keeps_what_its_comparison_depends_on(tmp_path: Path) -> None:
    plan = load(SWEPT)
    _, again = planned(store_of(tmp_path, cells_of(*SWEPT)), None, ["limits.parallel=1"], [])
    assert [cell.request.names for cell in again.cells] == [cell.request.names for cell in plan.cells]
    assert [cell.impossible for cell in again.cells] == [cell.impossible for cell in plan.cells]
    for before, after in zip(plan.cells, again.cells, strict=True):
        assert comparison_options(after.request) == comparison_options(before.request)
        assert after.request.measure == replace(before.request.measure, cures=0)
        for group in ("scheme", "soc", "backend", "tolerance"):
            assert getattr(after.request, group) == getattr(before.request, group)
    assert (plan.limits.parallel, again.limits.parallel) == (None, 1)


def test_overrides_change_the_values_of_the_run_and_not_those_of_the_defaults(tmp_path: Path) -> None:
    store = store_of(tmp_path, cells_of(*SWEPT))
    words = ["tolerance.final_snr_db={fp16:9}", "measure.replay=false"]
    first = planned(store, None, words, [])[1].cells[0].request
    assert (first.tolerance.final_snr_db["8a8w"], first.tolerance.final_snr_db["fp16"]) == (7, 9)
    assert first.measure.replay is False
    none = planned(store, None, ["tolerance=none"], [])[1].cells[0].request
    assert (none.tolerance.name, none.tolerance.final_snr_db) == ("none", {})


def test_the_folders_and_the_code_in_the_command_of_a_run_are_a_text(tmp_path: Path, planted: Path) -> None:
    hostile = (f"--config-dir={planted}", f"backend.kind={PLANTED}", f"hydra.searchpath=[{planted}]", "model=gone")
    _, plan = planned(store_of(tmp_path, cells_of(*SWEPT), *hostile), None, [], [])
    assert (plan.folders, [*planted.glob("*.ran")]) == ((), [])


def _kind(cells: dict[str, Any]) -> None:
    cells["values"]["backend"][0]["kind"] = PLANTED


def _metric(cells: dict[str, Any]) -> None:
    cells["values"]["measure"][0]["metrics"] = [PLANTED]


def _factory(cells: dict[str, Any]) -> None:
    cells["values"]["model"][0]["factory"] = PLANTED


def _toolchain(name: str) -> Callable[[dict[str, Any]], None]:
    def change(cells: dict[str, Any]) -> None:
        cells["cells"][0]["toolchain"] = name

    return change


def _interpolation(cells: dict[str, Any]) -> None:
    cells["values"]["tolerance"][0]["name"] = "${oc.env:HOME}"


def _wrong_type(cells: dict[str, Any]) -> None:
    cells["values"]["scheme"][0]["overrides"] = "all"


def _number(cells: dict[str, Any]) -> None:
    cells["cells"][0]["scheme"] = 7


REFUSED = {
    _kind: f"it used the backend {PLANTED}, which is code of its user: a store cannot choose code; name it again, ",
    _metric: f"it used the metric {PLANTED}, which is code of its user: a store cannot choose code; name it again, ",
    _toolchain("mine.yaml"): "toolchain=mine.yaml: this machine has no toolchain of this name; prepare it with ",
    _toolchain("../mine"): "toolchain=../mine: this machine has no toolchain of this name; prepare it with ",
    _interpolation: "its cells cannot be read: tolerance: an interpolation; make the run again",
    _wrong_type: "its cells cannot be read: scheme: ",
    _number: "its cells cannot be read: list index out of range; make the run again",
}


@pytest.mark.parametrize(("change", "message"), REFUSED.items())
def test_code_and_everything_but_values_in_a_run_is_refused_and_nothing_runs(
    tmp_path: Path,
    planted: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[dict[str, Any]], None],
    message: str,
) -> None:
    monkeypatch.chdir(planted)
    (planted / "mine.yaml").write_text(f"name: mine\nfolder: {planted}\n")
    cells = cells_of("measure.metrics=[l1]")
    change(cells)
    with pytest.raises(RequestError) as raised:
        planned(store_of(tmp_path, cells), None, [], [])
    assert message in str(raised.value)
    assert [*planted.glob("*.ran")] == []


def test_a_model_in_a_run_names_no_code(tmp_path: Path, planted: Path) -> None:
    cells = cells_of()
    _factory(cells)
    planned(store_of(tmp_path, cells), None, [], [])
    assert [*planted.glob("*.ran")] == []
    assert "factory" not in json.dumps(cells_of(*SWEPT))


def test_the_command_line_can_name_the_code_of_a_run_again(tmp_path: Path, planted: Path) -> None:
    cells = cells_of("measure.metrics=[l1]")
    _metric(cells)
    store = store_of(tmp_path, cells)
    for names, kept in ((f"[{PLANTED}]", [PLANTED]), ("[]", [])):
        _, plan = planned(store, None, [f"measure.metrics={names}"], [planted])
        assert plan.cells[0].request.measure.metrics == kept


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("recompare", "--run=x"), f"run {RUN.run_id} was itself a recompare; name the run that it compared: --run=x"),
        (
            ("repair", "model=x"),
            f"run {RUN.run_id} keeps no cells: qnnsweep repair model=x; only a run of qnnsweep run",
        ),
    ],
)
def test_only_a_sweep_can_be_compared_again(tmp_path: Path, command: tuple[str, ...], message: str) -> None:
    store = store_of(tmp_path, {})
    facts = store.root / "runs" / RUN.run_id / "run.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"command": ["qnnsweep", *command]}))
    with pytest.raises(RequestError, match=message):
        planned(store, None, [], [])
