"""Results found again and removed, by the real program: what decides, what pruning spares, two sweeps in one folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conf.names import CELL_STAGES
from tasks.storage import lock, tables
from tasks.storage.store import Store
from tests.flows.sweep_outputs import assert_files_are_complete, assert_no_leftovers, passed_result_of, read_table
from tests.program import Program

pytestmark = pytest.mark.toolchain

SMALL = ("model=digits_cnn", "model.evaluation.count=4", "scheme=fp32", "backend=portable", "soc=SM8650")


def states(ran: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Stage to `done` or `reused`."""
    words = [line.split("  ") for line in ran.stderr.splitlines()]
    return {line[0].split()[0]: "reused" if "reused" in line else "done" for line in words}


@pytest.fixture(scope="module")
def program(served_program: Program) -> Program:
    return served_program


def cell(artifacts: Path, run_id: str) -> dict[str, Any]:
    (row,) = read_table(artifacts, "cells", run_id)
    return row


def contents(artifacts: Path) -> set[Path]:
    return {path for path in artifacts.rglob("*") if path.is_file() and "devices" not in path.parts}


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def first(program: Program, artifacts: Path) -> str:
    return passed_result_of(program.run("run", "--json", *SMALL, f"artifacts={artifacts}"))["run_id"]


CHANGES = [
    (("tolerance.final_snr_db={fp32:50}", "model.name=renamed", "limits.parallel=1"), set()),
    (("tolerance.operators.fp32.snr_db=70",), {"compare"}),
    (("measure.iterations=2",), {"bundle", "deploy", "execute", "collect", "compare"}),
]


@pytest.mark.parametrize(("overrides", "computed"), CHANGES, ids=[change[0][0] for change in CHANGES])
def test_the_keys_decide_what_a_sweep_computes_again(
    program: Program, artifacts: Path, first: str, overrides: tuple[str, ...], computed: set[str]
) -> None:
    ran = program.run("run", "--json", *SMALL, "reuse=capture", *overrides, f"artifacts={artifacts}")
    assert states(ran) == {stage: "done" if stage in computed else "reused" for stage in CELL_STAGES}
    told = passed_result_of(ran)
    row, before = cell(artifacts, told["run_id"]), cell(artifacts, first)
    assert row["measured_run"] == (told["run_id"] if "execute" in computed else first)
    assert (row["latency_p50_ms"] == before["latency_p50_ms"]) is ("execute" not in computed)
    assert row["outputs_sha256"] == before["outputs_sha256"]


def test_a_device_is_asked_again_unless_a_capture_may_be_reused(program: Program, artifacts: Path, first: str) -> None:
    ran = program.run("run", "--json", *SMALL, f"artifacts={artifacts}")
    measured = {"deploy", "execute", "collect", "compare"}
    assert states(ran) == {stage: "done" if stage in measured else "reused" for stage in CELL_STAGES}
    run_id = passed_result_of(ran)["run_id"]
    assert (cell(artifacts, first)["measured_run"], cell(artifacts, run_id)["measured_run"]) == (first, run_id)


def test_another_word_for_reuse_is_refused(program: Program, tmp_path: Path) -> None:
    ran = program.run("plan", "reuse=everything", f"artifacts={tmp_path}")
    assert (ran.returncode, ran.stderr) == (2, "qnnsweep: reuse=everything: one of capture, programs\n")
    ran = program.run("plan", "retention.keep_runs=0", f"artifacts={tmp_path}")
    assert (ran.returncode, ran.stderr) == (2, "qnnsweep: retention.keep_runs=0: 1 or more\n")


def test_the_cache_says_what_it_holds_by_stage_and_by_run(program: Program, artifacts: Path, first: str) -> None:
    found = json.loads(program.run("cache", "--json", f"--artifacts={artifacts}").stdout)
    stages = {each["stage"]: each for each in found["stages"]}
    assert [*stages] == ["export", "quantize", "lower", "bundle", "measure", "compare", "others"]
    records = [path.name.partition("-")[0] for path in (artifacts / "results" / "records").iterdir()]
    assert {name: each["results"] for name, each in stages.items()} == {
        name: records.count(name) for name in stages
    }  # fmt: skip
    sizes = {path.name: path.stat().st_size for path in (artifacts / "blobs").glob("*/*")}
    assert sum(each["blobs"] for each in found["stages"]) == len(sizes)
    assert sum(each["blob_bytes"] for each in found["stages"]) == sum(sizes.values())
    assert [run["run_id"] for run in found["runs"]] == tables.runs(Store(artifacts))
    assert (found["runs"][0]["run_id"], found["runs"][0]["made"], found["runs"][0]["reused"]) == (first, 6, 0)
    shown = program.run("cache", "--runs=1", f"--artifacts={artifacts}")
    assert shown.returncode == 0
    assert tables.runs(Store(artifacts))[-1] in shown.stdout
    assert first not in shown.stdout


def test_a_dry_run_removes_nothing_and_a_wrong_wish_is_one_line(program: Program, artifacts: Path, first: str) -> None:
    before, known = contents(artifacts), ", ".join(tables.runs(Store(artifacts)))
    ran = program.run("cache", "prune", f"--run={first}", "--dry-run", f"--artifacts={artifacts}")
    assert ran.stdout.startswith(f"would remove: {first}; ")
    assert contents(artifacts) == before
    for options, line in (
        (["--older-than=soon"], "--older-than=soon: must be a number followed by one of h, d, w"),
        (["--larger-than=3 GB"], "--larger-than=3 GB: must be a number followed by one of KiB, MiB, GiB, TiB"),
        (["--run=none"], f"--run none: no such run in {artifacts}; there are: {known}"),
    ):
        ran = program.run("cache", "prune", *options, f"--artifacts={artifacts}")
        assert (ran.returncode, ran.stderr) == (2, f"qnnsweep: {line}\n")


def test_a_sweep_that_is_going_on_keeps_all_that_there_is(program: Program, artifacts: Path, first: str) -> None:
    command = ["run", "--json", *SMALL, "measure.warm_up=1", f"artifacts={artifacts}"]
    with program.start(*command) as sweep:
        assert sweep.stderr is not None
        assert sweep.stderr.readline().startswith(("export", "quantize"))
        ran = program.run("cache", "prune", "--keep=0", f"--artifacts={artifacts}")
        assert sweep.poll() is None, "the sweep was over too soon to tell anything"
        line = f"artifacts={artifacts}: a sweep is going on there, so nothing was removed; prune when it has ended"
        assert (ran.returncode, ran.stderr) == (3, f"qnnsweep: {line}\n")
        out, said = sweep.communicate(timeout=300)
    assert sweep.returncode == 0, said
    assert json.loads(out.splitlines()[-1])["outcomes"] == {"passed": 1}
    assert first in tables.runs(Store(artifacts))
    assert_files_are_complete(artifacts)
    assert_no_leftovers(artifacts)


def test_pruning_breaks_no_run_that_stays(program: Program, artifacts: Path, first: str) -> None:
    """The last test of this folder: of all runs one stays, and whatever was made for the others alone goes."""
    ran = program.run("run", "--json", *SMALL, "reuse=capture", f"artifacts={artifacts}")
    kept = passed_result_of(ran)["run_id"]  # it reused what the others had made
    others = [f"--run={run}" for run in tables.runs(Store(artifacts)) if run != kept]
    ran = program.run("cache", "prune", "--json", *others, f"--artifacts={artifacts}")
    told = passed_result_of(ran)
    assert tables.runs(Store(artifacts)) == [kept]
    assert [path.name for path in (artifacts / "runs").iterdir()] == [kept]
    assert told["results"]
    assert told["blobs"]
    assert told["left"] == json.loads(program.run("cache", "--json", f"--artifacts={artifacts}").stdout)["bytes"]
    assert_files_are_complete(artifacts)
    assert_no_leftovers(artifacts)
    assert program.run("report", kept, f"--artifacts={artifacts}").returncode == 0
    again = program.run("recompare", f"--run={kept}", "measure.replay=false", f"--artifacts={artifacts}")
    assert again.returncode == 0, again.stderr
    ran = program.run("run", "--json", *SMALL, "reuse=capture", f"artifacts={artifacts}")
    assert states(ran) == dict.fromkeys(CELL_STAGES, "reused")


def test_two_sweeps_at_once_in_one_folder_both_end_whole(program: Program, tmp_path: Path) -> None:
    small = [each for each in SMALL if not each.startswith("backend=")]
    backends = ("portable", "xnnpack")
    both = [program.start("run", "--json", *small, f"backend={each}", f"artifacts={tmp_path}") for each in backends]
    told = [sweep.communicate(timeout=600) for sweep in both]
    assert [sweep.returncode for sweep in both] == [0, 0], told
    runs = [json.loads(out.splitlines()[-1])["run_id"] for out, _ in told]
    assert sorted(runs) == tables.runs(Store(tmp_path))
    assert [cell(tmp_path, run)["backend"] for run in runs] == [*backends]
    assert_files_are_complete(tmp_path)
    assert_no_leftovers(tmp_path)


def test_old_runs_go_when_one_has_ended(program: Program, tmp_path: Path) -> None:
    command = ["run", "--json", *SMALL, "retention.keep_runs=1", f"artifacts={tmp_path}"]
    runs = [passed_result_of(program.run(*command))["run_id"] for _ in range(2)]
    assert tables.runs(Store(tmp_path)) == runs[1:]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == runs[1:]


def test_whoever_removes_is_alone_and_whoever_works_is_not_waited_for(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    code = (
        "import sys; from pathlib import Path; from tasks.storage.store import Store\n"
        "from tasks.storage import lock\n"
        "with lock.exclusive(Store(Path(sys.argv[1]))): print('alone')"
    )
    argv = [sys.executable, "-c", code, str(tmp_path)]
    with lock.shared(store), lock.shared(store):
        ran = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert "EnvironmentUnusable" in ran.stderr
    with lock.exclusive(store):
        assert subprocess.run(argv, capture_output=True, text=True, check=False).stdout == ""
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "alone\n"
