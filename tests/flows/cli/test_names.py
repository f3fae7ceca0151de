"""The names that commands accept: of runs, of the artifacts folder, of options, and their completion in the shell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qnnsweep.flows.runs.results import write_rows
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from tests.program import Program
from tests.sample_tables import RUN, cell, nightly, sweep, table

RUNS = ("20260101T220000Z-aaaa", "20260102T220000Z-bbbb", "20260103T220000Z-cccc")


@pytest.fixture(scope="module")
def program(served_program: Program) -> Program:
    return served_program


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    """A store with three runs, each of a passed and a failed cell."""
    store = Store.at(str(tmp_path / "store"))
    store.check_writable()
    for run in RUNS:
        rows = [cell("digits_cnn", "8a8w", "SM8650"), cell("digits_cnn", "fp16", "SM8650", outcome="failed")]
        tables.write(store, run, "cells", [row | {"run_id": run} for row in table("cells", rows)])
    return store.root


@pytest.mark.parametrize(
    ("name", "run"), [("latest", RUNS[2]), ("previous", RUNS[1]), ("20260101", RUNS[0]), (RUNS[1], RUNS[1])]
)
def test_a_run_has_the_same_names_in_every_command(program: Program, artifacts: Path, name: str, run: str) -> None:
    pruned = program.run("cache", "prune", f"--run={name}", "--dry-run", "--json", f"--artifacts={artifacts}")
    assert json.loads(pruned.stdout)["runs"] == [run]
    # These runs have no facts, so the message of each command names the run that it has selected.
    for command in (("report", name), ("recompare", f"--run={name}")):
        ran = program.run(*command, f"artifacts={artifacts}")
        assert (ran.returncode, f"/runs/{run}/run.json cannot be read: " in ran.stderr) == (1, True)


def test_the_artifacts_folder_has_the_same_two_forms_in_every_command(program: Program, artifacts: Path) -> None:
    rows = [{"run": run, "command": "run", "cells": 2, "passed": 1} for run in reversed(RUNS)]
    runs = {"schema": "qnnsweep/list/1", "runs": rows}
    for form in (f"artifacts={artifacts}", f"--artifacts={artifacts}"):
        assert json.loads(program.run("list", "runs", "--json", form).stdout) == runs
        assert json.loads(program.run("cache", "--json", form).stdout)["artifacts"] == str(artifacts)
        file = artifacts / "a file"
        file.touch()
        ran = program.run("run", form.replace(str(artifacts), str(file)))
        assert ran.returncode == 3
        assert ran.stderr.splitlines()[-1].startswith(f"qnnsweep: artifacts: cannot use {file}")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (
            "digits_cnn/8",
            "CELL=digits_cnn/8: no cell of run 20260103T220000Z-cccc; write one of digits_cnn/8a8w/SM8650/",
        ),
        (
            "digits_cnn",
            "CELL=digits_cnn: several cells of run 20260103T220000Z-cccc; write one of digits_cnn/8a8w/SM8650/",
        ),
        ("digits_cnn/8a8w", "CELL=digits_cnn/8a8w: nothing was captured of this cell; see its row in the report"),
    ],
)
def test_a_wrong_cell_is_answered_with_the_right_names(
    program: Program, artifacts: Path, cell: str, message: str
) -> None:
    ran = program.run("tensors", "latest", cell, "conv", f"artifacts={artifacts}")
    assert (ran.returncode, ran.stderr.startswith(f"qnnsweep: {message}")) == (2, True)


@pytest.mark.parametrize(
    ("kind", "name", "about"),
    [
        ("models", "digits_cnn", "A small CNN that classifies handwritten digits"),
        ("schemes", "8a8w", "8-bit activations and weights"),
        ("socs", "SM8650", "Snapdragon 8 Gen 3"),
        ("devices", "local", "This machine with the HTP simulator"),
    ],
)
def test_the_options_of_a_group_are_listed_with_what_they_are_and_their_files(
    program: Program, kind: str, name: str, about: str
) -> None:
    listed = json.loads(program.run("list", kind, "--json").stdout)[kind]
    (row,) = (row for row in listed if row[kind.removesuffix("s")] == name)
    assert (row["about"], Path(row["file"]).name) == (about, f"{name}.yaml")
    assert Path(row["file"]).is_file()


def test_the_operators_of_the_latest_run_are_listed_once(program: Program, artifacts: Path) -> None:
    store = Store.at(str(artifacts))
    operator = {"model": "digits_cnn", "operator": "aten_relu", "target": "aten.relu.default", "module_path": "head"}
    rows = table("operators", [operator | {"run_id": RUNS[2], "sample": sample} for sample in (0, 1)])
    tables.write(store, RUNS[2], "operators", rows)
    ran = program.run("list", "operators", "--json", f"artifacts={artifacts}")
    assert json.loads(ran.stdout)["operators"] == [operator]


def test_short_help_and_version(program: Program) -> None:
    assert program.run("run", "-h").stdout == program.run("run", "--help").stdout
    ran = program.run("--version")
    assert (ran.returncode, ran.stdout.startswith("qnnsweep 0."), "executorch 1.5.1" in ran.stdout) == (0, True, True)


BASH = {
    ("run", "mod"): ["model="],
    ("run", "measure.it"): ["measure.iterations="],
    ("run", "model", "=", "dig"): ["digits_cnn"],
    ("run", "model", "="): None,
    ("run", "scheme", "=", "8a8w,16a8"): ["8a8w,16a8w"],
    ("run", "model", "=", "digits_cnn", "reuse", "=", "c"): ["capture"],
    ("plan", "measure.replay", "=", "f"): ["false"],
    ("bisect", "exec"): ["executorch="],
    ("bisect", "soc", "=", "SM8650", "model", "=", "dig"): ["digits_cnn"],
    ("report", "--artifacts", "STORE", "20260102"): [RUNS[1]],
    ("diff", "--artifacts", "STORE", "l"): ["latest"],
}


@pytest.mark.parametrize("words", BASH, ids=" ".join)
def test_bash_completes_keys_values_and_runs(program: Program, artifacts: Path, words: tuple[str, ...]) -> None:
    typed = " ".join(("qnnsweep", *words)).replace("STORE", str(artifacts))
    variables = {"_QNNSWEEP_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words))}
    completed = program.run(**variables).stdout.splitlines()
    if BASH[words] is None:
        assert {"digits_cnn", "minilm_l6"} <= set(completed)
    else:
        assert completed == BASH[words]


def test_a_shell_that_does_not_split_words_completes_the_value_after_its_key(program: Program) -> None:
    typed = {"_QNNSWEEP_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": "qnnsweep run soc=SM8350,SM86"}
    completed = program.run(**typed, _TYPER_COMPLETE_FISH_ACTION="get-args").stdout.splitlines()
    assert "soc=SM8350,SM8650" in completed


def test_the_last_override_of_a_cell_of_bisect_is_completed(program: Program) -> None:
    typed = {"_QNNSWEEP_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": "qnnsweep bisect 'scheme=8a8w soc=SM86"}
    completed = program.run(**typed, _TYPER_COMPLETE_FISH_ACTION="get-args").stdout.splitlines()
    assert "scheme=8a8w soc=SM8650" in completed


def test_the_report_is_opened_in_the_users_browser(program: Program, tmp_path: Path) -> None:
    store = Store.at(str(tmp_path / "store"))
    write_rows(RUN, {**dict.fromkeys(tables.TABLES, ()), **sweep(nightly()[:1])}, store)
    browser = tmp_path / "browser"
    browser.write_text('#!/bin/sh\necho "$1" > "$0.opened"\n')
    browser.chmod(0o755)
    ran = program.run("report", "latest", "--open", f"--artifacts={store.root}", BROWSER=f"{browser} %s")
    assert (ran.returncode, ran.stderr) == (0, "")
    page = store.root / "runs" / RUN.run_id / "report.html"
    assert Path(f"{browser}.opened").read_text() == f"{page.as_uri()}\n"
    refused = program.run("report", "--open", f"--artifacts={store.root}", BROWSER="false", PATH="/nonexistent")
    assert (refused.returncode, refused.stderr) == (
        3, f"qnnsweep: no browser can be started; open {page}, or set BROWSER\n",
    )  # fmt: skip
