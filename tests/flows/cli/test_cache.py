"""The cache of a real program: which results are reused, what pruning removes, and two sweeps in one folder."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qnnsweep.conf.names import CELL_STAGES
from qnnsweep.tasks.storage import lock, tables
from qnnsweep.tasks.storage.store import Store
from tests.flows.sweep_outputs import assert_files_are_complete, assert_no_leftovers, passed_result_of, read_table
from tests.program import Program

pytestmark = pytest.mark.toolchain

SMALL = ("model=digits_cnn", "model.evaluation.count=4", "scheme=fp32", "backend=portable", "soc=SM8650")


def states(ran: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return whether each stage was `done` or `reused`."""
    _, *lines = ran.stderr.splitlines()  # the first line says how many cells run
    words = [line.split("  ") for line in lines]
    return {line[0].split()[0]: "reused" if "reused" in line else "done" for line in words}


@pytest.fixture(scope="module")
def program(served_program: Program) -> Program:
    return served_program


def cell(artifacts: Path, run_id: str) -> dict[str, Any]:
    (row,) = read_table(artifacts, "cells", run_id)
    return row


def files(artifacts: Path) -> set[Path]:
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


@pytest.mark.parametrize(("overrides", "stages"), CHANGES, ids=[change[0][0] for change in CHANGES])
def test_a_sweep_computes_only_the_stages_whose_keys_change(
    program: Program, artifacts: Path, first: str, overrides: tuple[str, ...], stages: set[str]
) -> None:
    ran = program.run("run", "--json", *SMALL, "reuse=capture", *overrides, f"artifacts={artifacts}")
    assert states(ran) == {stage: "done" if stage in stages else "reused" for stage in CELL_STAGES}
    run_id = passed_result_of(ran)["run_id"]
    row, before = cell(artifacts, run_id), cell(artifacts, first)
    assert row["measured_run"] == (run_id if "execute" in stages else first)
    assert (row["latency_p50_ms"] == before["latency_p50_ms"]) is ("execute" not in stages)
    assert row["outputs_sha256"] == before["outputs_sha256"]


def test_a_capture_is_reused_only_with_reuse_capture(program: Program, artifacts: Path, first: str) -> None:
    ran = program.run("run", "--json", *SMALL, f"artifacts={artifacts}")
    measured = {"deploy", "execute", "collect", "compare"}
    assert states(ran) == {stage: "done" if stage in measured else "reused" for stage in CELL_STAGES}
    run_id = passed_result_of(ran)["run_id"]
    assert (cell(artifacts, first)["measured_run"], cell(artifacts, run_id)["measured_run"]) == (first, run_id)


def test_an_invalid_reuse_or_retention_is_refused(program: Program, tmp_path: Path) -> None:
    ran = program.run("plan", "reuse=everything", f"artifacts={tmp_path}")
    assert (ran.returncode, ran.stderr) == (2, "qnnsweep: reuse=everything: one of capture, programs\n")
    ran = program.run("plan", "retention.keep_runs=0", f"artifacts={tmp_path}")
    assert (ran.returncode, ran.stderr) == (2, "qnnsweep: retention.keep_runs=0: 1 or more\n")


def test_the_cache_lists_its_contents_by_stage_and_by_run(program: Program, artifacts: Path, first: str) -> None:
    contents = json.loads(program.run("cache", "--json", f"--artifacts={artifacts}").stdout)
    stages = {stage["stage"]: stage for stage in contents["stages"]}
    assert [*stages] == ["export", "quantize", "lower", "divide", "bundle", "measure", "compare", "cure", "others"]
    records = [path.name.partition("-")[0] for path in (artifacts / "results" / "records").iterdir()]
    assert {name: stage["results"] for name, stage in stages.items()} == {
        name: records.count(name) for name in stages
    }  # fmt: skip
    sizes = {path.name: path.stat().st_size for path in (artifacts / "blobs").glob("*/*")}
    assert sum(stage["blobs"] for stage in contents["stages"]) == len(sizes)
    assert sum(stage["blob_bytes"] for stage in contents["stages"]) == sum(sizes.values())
    assert [run["run_id"] for run in contents["runs"]] == tables.runs(Store(artifacts))
    assert tuple(contents["runs"][0][key] for key in ("run_id", "made", "reused")) == (first, 7, 0)
    newest = program.run("cache", "--runs=1", f"--artifacts={artifacts}")
    assert newest.returncode == 0
    assert tables.runs(Store(artifacts))[-1] in newest.stdout
    assert first not in newest.stdout


def test_a_dry_run_removes_nothing_and_invalid_options_are_refused(
    program: Program, artifacts: Path, first: str
) -> None:
    before, known = files(artifacts), ", ".join(tables.runs(Store(artifacts)))
    ran = program.run("cache", "prune", f"--run={first}", "--dry-run", f"--artifacts={artifacts}")
    assert ran.stdout.startswith(f"would remove: {first}; ")
    assert files(artifacts) == before
    for options, line in (
        (["--older-than=soon"], "--older-than=soon: must be a number followed by one of h, d, w"),
        (["--larger-than=3 GB"], "--larger-than=3 GB: must be a number followed by one of KiB, MiB, GiB, TiB"),
        (["--run=none"], f"no run 'none' in {artifacts}; there are: {known}"),
    ):
        ran = program.run("cache", "prune", *options, f"--artifacts={artifacts}")
        assert (ran.returncode, ran.stderr) == (2, f"qnnsweep: {line}\n")


def test_a_prune_is_refused_while_a_sweep_runs(program: Program, artifacts: Path, first: str) -> None:
    command = ["run", "--json", *SMALL, "measure.warm_up=1", f"artifacts={artifacts}"]
    with program.start(*command) as sweep:
        assert sweep.stderr is not None
        assert sweep.stderr.readline() == "1 cell to run, 0 impossible\n"
        assert sweep.stderr.readline().startswith(("export", "quantize"))
        sweep.send_signal(signal.SIGSTOP)  # it cannot end before the prune has looked
        ran = program.run("cache", "prune", "--keep=0", f"--artifacts={artifacts}")
        assert sweep.poll() is None, "the sweep ended too soon"
        sweep.send_signal(signal.SIGCONT)
        line = f"artifacts={artifacts}: a sweep is running there, so nothing was removed; try again when it has ended"
        assert (ran.returncode, ran.stderr) == (3, f"qnnsweep: {line}\n")
        out, error = sweep.communicate(timeout=300)
    assert sweep.returncode == 0, error
    assert json.loads(out.splitlines()[-1])["outcomes"] == {"passed": 1}
    assert first in tables.runs(Store(artifacts))
    assert_files_are_complete(artifacts)
    assert_no_leftovers(artifacts)


def test_what_a_repair_removed_is_computed_again(program: Program, artifacts: Path, first: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", artifacts, copy], check=True)  # it keeps the links between files
    assert program.run("cache", "verify", f"--artifacts={copy}").returncode == 0
    (quantized,) = (copy / "results" / "records").glob("quantize-*")
    (compared, *_) = (copy / "results" / "keys").glob("compare-*")
    (link,) = (copy / "runs" / first / "files").rglob("program.pte")
    damaged = [quantized, compared, link, copy / "runs" / first / "holds.json"]
    table = copy / "tables" / "cells" / f"run={first}" / "part.parquet"
    for path in (*damaged, table):
        path.chmod(0o644)
        with path.open("r+b") as file:
            file.seek(0 if path == compared else path.stat().st_size // 2)
            file.write(b"damage" * 50)  # more than the header of a column: a record is its values, not their headers
    ran = program.run("cache", "verify", "--json", "--repair", f"--artifacts={copy}")
    damages = json.loads(ran.stdout)["damages"]
    assert (ran.returncode, [damage["kind"] for damage in damages if damage["repaired"]]) == (
        1, ["blob", "result", "key", "manifest"],
    )  # fmt: skip
    assert [path for path in (*damaged, table) if path.exists()] == [table]
    ran = program.run("run", "--json", *SMALL, "reuse=capture", f"artifacts={copy}")
    assert states(ran)["quantize"] == states(ran)["lower"] == states(ran)["compare"] == "done"
    run_id = passed_result_of(ran)["run_id"]
    assert cell(copy, run_id)["outputs_sha256"] == cell(artifacts, first)["outputs_sha256"]
    ran = program.run("cache", "verify", f"--artifacts={copy}")
    line, _ = ran.stdout.splitlines()
    assert (ran.returncode, line.startswith(f"table {table}: ")) == (1, True)


def test_a_prune_keeps_what_the_remaining_run_needs(program: Program, artifacts: Path, first: str) -> None:
    """One run remains, and everything that only the others used is removed."""
    ran = program.run("run", "--json", *SMALL, "reuse=capture", f"artifacts={artifacts}")
    remaining = passed_result_of(ran)["run_id"]  # it reused the results of the others
    others = [f"--run={run}" for run in tables.runs(Store(artifacts)) if run != remaining]
    ran = program.run("cache", "prune", "--json", *others, f"--artifacts={artifacts}")
    removed = passed_result_of(ran)
    assert tables.runs(Store(artifacts)) == [remaining]
    assert sorted(path.name for path in (artifacts / "runs").iterdir()) == [remaining]
    assert removed["results"]
    assert removed["blobs"]
    assert removed["left"] == json.loads(program.run("cache", "--json", f"--artifacts={artifacts}").stdout)["bytes"]
    assert_files_are_complete(artifacts)
    assert_no_leftovers(artifacts)
    assert program.run("report", remaining, f"--artifacts={artifacts}").returncode == 0
    again = program.run("recompare", f"--run={remaining}", "measure.replay=false", f"--artifacts={artifacts}")
    assert again.returncode == 0, again.stderr
    ran = program.run("run", "--json", *SMALL, "reuse=capture", f"artifacts={artifacts}")
    assert states(ran) == dict.fromkeys(CELL_STAGES, "reused")


def test_retention_removes_old_runs_at_the_end_of_a_sweep(program: Program, artifacts: Path, first: str) -> None:
    """The last test in this folder: only the new run remains."""
    assert tables.runs(Store(artifacts))
    ran = program.run("run", "--json", *SMALL, "reuse=capture", "retention.keep_runs=1", f"artifacts={artifacts}")
    run_id = passed_result_of(ran)["run_id"]
    assert tables.runs(Store(artifacts)) == [run_id]
    assert sorted(path.name for path in (artifacts / "runs").iterdir()) == [run_id]


@pytest.mark.slow
def test_two_sweeps_at_once_in_one_folder_leave_complete_files(program: Program, tmp_path: Path) -> None:
    small = [override for override in SMALL if not override.startswith("backend=")]
    backends = ("portable", "xnnpack")
    both = [
        program.start("run", "--json", *small, f"backend={backend}", f"artifacts={tmp_path}") for backend in backends
    ]
    outputs = [sweep.communicate(timeout=600) for sweep in both]
    assert [sweep.returncode for sweep in both] == [0, 0], outputs
    runs = [json.loads(out.splitlines()[-1])["run_id"] for out, _ in outputs]
    assert sorted(runs) == tables.runs(Store(tmp_path))
    assert [cell(tmp_path, run)["backend"] for run in runs] == [*backends]
    assert_files_are_complete(tmp_path)
    assert_no_leftovers(tmp_path)


def test_the_lock_is_shared_by_sweeps_and_exclusive_for_a_prune(tmp_path: Path) -> None:
    store = Store(tmp_path)
    code = (
        "import sys; from pathlib import Path; from qnnsweep.tasks.storage.store import Store\n"
        "from qnnsweep.tasks.storage import lock\n"
        "with lock.exclusive(Store(Path(sys.argv[1]))): print('alone')"
    )
    argv = [sys.executable, "-c", code, str(tmp_path)]
    with lock.shared(store), lock.shared(store):
        ran = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert "EnvironmentUnusable" in ran.stderr
    with lock.exclusive(store):
        assert subprocess.run(argv, capture_output=True, text=True, check=False).stdout == ""
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "alone\n"
