"""A sweep on two hosts that share one board: a Prefect server with PostgreSQL, a work pool, and a power failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import yaml

from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.atomic import owner_of
from qnnsweep.tasks.storage.store import Store
from tests.devices.loopback import Sshd, free_port, running, write_farm
from tests.flows.cluster import POLL_S, Host, client_environment, postgresql, prefect_server, wait_until
from tests.flows.sweep_outputs import passed_result_of
from tests.object_store import ObjectStore, serve_object_store
from tests.program import Program

pytestmark = [pytest.mark.slow, pytest.mark.night, pytest.mark.toolchain, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[3]
ARTIFACTS = "s3://nights/artifacts"
SILENCE_S = 60
SMALL = [
    *("model=digits_cnn", "model.evaluation.count=4", "model.calibration.count=16"),
    *("limits.parallel=1", "measure.cures=0"),
]
# The board's own log of its runs, with a lock that the kernel frees when the last process of a launch has ended.
WATCHED = """\
#!/bin/sh
exec 9>>{folder}/lock
flock -n 9 || echo "twice $(date +%s.%N)" >>{folder}/log_of_runs
echo "begin $(date +%s.%N)" >>{folder}/log_of_runs
{python} "$@"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("server")
    with postgresql() as database, prefect_server(folder, folder / "log", database) as client:
        yield client


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with serve_object_store(tmp_path_factory.mktemp("objects")) as store:
        store.create_bucket("nights")
        yield store


@pytest.fixture(scope="module")
def lead(
    program: Program, server: httpx.Client, objects: ObjectStore, tmp_path_factory: pytest.TempPathFactory
) -> Program:
    """The program on the machine that starts the sweeps, with the pools and deployments of prefect.yaml."""
    environment = client_environment(server) | {"PREFECT_HOME": str(tmp_path_factory.mktemp("lead"))}
    environment |= {"QNNSWEEP_ARTIFACTS": ARTIFACTS, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    environment |= objects.environment
    leading = replace(program, environment=program.environment | environment)
    for pool in ("qnnsweep", "qnnsweep-nights"):
        prefect(leading, "work-pool", "create", pool, "--type", "process")
    prefect(leading, "--no-prompt", "deploy", "--all", "--prefect-file", str(ROOT / "prefect.yaml"))
    return leading


def prefect(program: Program, *arguments: str) -> None:
    """Run the command `prefect` in the program's environment."""
    ran = subprocess.run(
        [sys.executable, "-m", "prefect", *arguments], env=program.environment, cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Sshd]:
    """A real sshd whose runner logs when it begins, and whether it runs twice at once."""
    sshd = Sshd(folder=tmp_path / "board")
    with running(sshd):
        runner = sshd.folder / "watched"
        runner.write_text(WATCHED.format(folder=sshd.folder, python=sys.executable))
        runner.chmod(0o755)
        yield sshd


@pytest.fixture
def conf(tmp_path: Path, board: Sshd) -> Path:
    """The configuration of two models that differ only in their name, and of the board."""
    folder = tmp_path / "conf"
    write_farm(folder, [], [board], python=str(board.folder / "watched"))
    (folder / "model").mkdir()
    for name in ("one", "other"):
        shipped = yaml.safe_load((ROOT / "conf" / "model" / "digits_cnn.yaml").read_text())
        (folder / "model" / f"{name}.yaml").write_text(yaml.safe_dump(shipped | {"name": name}))
    return folder


@pytest.fixture
def hosts(tmp_path: Path, lead: Program, server: httpx.Client, objects: ObjectStore) -> Iterator[list[Host]]:
    """Two hosts, each with a worker that runs one shard at a time."""
    quick = {"PREFECT_WORKER_QUERY_SECONDS": "2", "PREFECT_WORKER_PREFETCH_SECONDS": "2"}
    shared = {name: lead.environment[name] for name in ("PATH", *client_environment(server), *objects.environment)}
    both = [
        Host(name=f"host{number}", folder=tmp_path / f"host{number}", environment=shared | quick) for number in (1, 2)
    ]
    for host in both:
        command = ("worker", "start", "--pool", "qnnsweep", "--limit", "1", "--name", host.name)
        host.start(sys.executable, "-m", "prefect", *command)
    yield both
    for host in both:
        host.lose_power()


def holder(board: Sshd) -> str:
    """Return the host of the lease on the board, empty if it is free or the launch has not begun."""
    if not log_of(board):
        return ""
    leases = sorted((board.folder / "work" / "qnnsweep" / "leases").glob("*"))
    owner = owner_of(leases[0].name) if leases else None
    return owner.host if owner else ""


def log_of(board: Sshd) -> list[tuple[str, float]]:
    """Return the board's log: `begin` or `twice`, and the time."""
    file = board.folder / "log_of_runs"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(word, float(when)) for word, when in (line.split() for line in lines)]


def test_every_cell_passes_and_none_is_twice_on_the_board_when_the_host_that_holds_it_loses_power(
    lead: Program,
    server: httpx.Client,
    hosts: list[Host],
    board: Sshd,
    conf: Path,
    tmp_path: Path,
    objects: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = [
        "run", "--json", "--pool=qnnsweep", f"--config-dir={conf}", f"artifacts={ARTIFACTS}", "device=board_1",
        "model=one,other", "scheme=fp32,8a8w,fp16", "backend=xnnpack", "model.evaluation.count=4",
        "model.calibration.count=16", f"limits.silence_s={SILENCE_S}", "limits.parallel=1", "measure.cures=0",
    ]  # fmt: skip
    before = set(shards(server))
    with lead.start(*command) as sweep:
        try:
            name = wait_until(lambda: sweep.poll() is not None or holder(board), 300, "a cell is on the board")
            (killed,) = [host for host in hosts if host.name == name]
            killed.lose_power()
            lost = time.time()
            out, err = sweep.communicate(timeout=900)
        finally:
            sweep.kill()
    assert sweep.returncode == 0, err
    summary = json.loads(out.splitlines()[-1])
    for name, value in objects.environment.items():
        monkeypatch.setenv(name, value)
    store = Store.at(ARTIFACTS, cache_folder=str(tmp_path))
    rows = tables.rows(store, "cells", summary["run_id"])
    assert [(row["model"], row["scheme"], row["outcome"]) for row in rows] == [
        (model, scheme, outcome)
        for model in ("one", "other")
        for scheme, outcome in (("fp32", "passed"), ("8a8w", "passed"), ("fp16", "impossible"))
    ]
    assert {row["device"] for row in rows} == {"board_1"}
    begins = [time_s for word, time_s in log_of(board) if word == "begin"]
    assert [word for word, _ in log_of(board) if word == "twice"] == []
    assert len(begins) > 8  # a shipping and a debug program per cell, and the launch that the power failure ended
    assert [begin for begin in begins if begin > lost], "the board is free again when the lease of the lost host ends"
    assert not [name for name in store.files.names(f"runs/{summary['run_id']}") if "shards" in name]
    assert sorted(state for run, state in shards(server).items() if run not in before) == ["COMPLETED"] * 4 + [
        "CRASHED"
    ]
    assert (board.folder / "qnnsweep-lock" / "holder").read_text() == ""


def shards(server: httpx.Client) -> dict[str, str]:
    """Return the state type of every flow run of a shard, by its id."""
    runs = server.post("/flow_runs/filter", json={"flows": {"name": {"any_": ["shard"]}}}).raise_for_status().json()
    return {run["id"]: run["state_type"] for run in runs}


def test_cells_of_shards_that_do_not_complete_have_the_reason_and_a_cancelled_shard_is_not_retried(
    lead: Program, server: httpx.Client, tmp_path: Path
) -> None:
    small = ["model=digits_cnn", "scheme=8a8w,fp16", "soc=SM8350,SM8650", f"artifacts={tmp_path}"]
    before = set(shards(server))
    with lead.start("run", "--json", "--pool=qnnsweep", *small, "limits.shard_attempts=2") as sweep:
        try:
            for _ in range(3):  # two shards, and the second attempt of the one that crashes

                def fresh() -> list[str]:
                    return [run for run, state in shards(server).items() if state == "SCHEDULED" and run not in before]

                (run, *_) = wait_until(fresh, 300, "a shard is scheduled")
                name = server.get(f"/flow_runs/{run}").json()["parameters"]["overrides"][-1]
                state = "CANCELLED" if name == "scheme=fp16" else "CRASHED"
                end = {"state": {"type": state, "message": "by a test"}, "force": True}
                server.post(f"/flow_runs/{run}/set_state", json=end).raise_for_status()
                before.add(run)
            out, err = sweep.communicate(timeout=300)
        finally:
            sweep.kill()
    assert sweep.returncode == 3, err
    rows = tables.rows(Store(tmp_path), "cells", json.loads(out.splitlines()[-1])["run_id"])
    assert [
        (row["scheme"], row["soc"], row["outcome"], (row["error"] or "").rpartition(" ended ")[2]) for row in rows
    ] == [
        ("8a8w", "SM8350", "infrastructure", "Crashed: by a test"),
        ("8a8w", "SM8650", "infrastructure", "Crashed: by a test"),
        ("fp16", "SM8350", "impossible", ""),
        ("fp16", "SM8650", "infrastructure", "Cancelled: by a test"),
    ]


def test_a_sweep_on_two_workers_is_whole_and_keeps_its_cache_although_prunes_run_beside_it_all_the_time(
    lead: Program, hosts: list[Host], tmp_path: Path
) -> None:
    assert len(hosts) == 2
    artifacts = tmp_path / "artifacts"
    request = [*SMALL, "backend=xnnpack", f"artifacts={artifacts}"]
    prune = ["cache", "prune", "--keep=30", f"--artifacts={artifacts}"]
    # Both shards read this export. Two exports at the same time are not equal bit by bit, and only one is found later.
    passed_result_of(lead.run("run", "--json", *request, "scheme=fp32"))
    prunes: dict[int, str] = {}
    with lead.start("run", "--json", "--pool=qnnsweep", *request, "scheme=fp32,8a8w", "retention.keep_runs=5") as sweep:
        try:
            while sweep.poll() is None:
                if (artifacts / "blobs").is_dir():
                    pruned = lead.run(*prune)
                    prunes[pruned.returncode] = pruned.stderr
                time.sleep(POLL_S)
            out, err = sweep.communicate()
        finally:
            sweep.kill()
    assert (sweep.returncode, prunes.keys() - {0}) == (0, {3}), (prunes, err)
    summary = json.loads(out.splitlines()[-1])
    assert summary["outcomes"] == {"passed": 2}
    results = sorted((artifacts / "results" / "records").iterdir())
    two_days_ago = time.time() - 2 * 86_400
    for path in [*results, *artifacts.glob("blobs/*/*")]:
        os.utime(path, (two_days_ago, two_days_ago))
    assert lead.run(*prune).returncode == 0
    assert sorted((artifacts / "results" / "records").iterdir()) == results
    again = lead.run("run", "--json", *request, "scheme=fp32,8a8w")
    passed_result_of(again)
    states = [line.split()[0] for line in again.stderr.splitlines() if " done " in line]
    assert set(states) & {"export", "quantize", "lower", "bundle"} == set(), again.stderr


@pytest.fixture
def dask(lead: Program, tmp_path: Path) -> Iterator[str]:
    """The address of a Dask scheduler with one worker."""
    address = f"tcp://127.0.0.1:{free_port()}"
    scheduler, worker = (Host(name=name, folder=tmp_path / name, environment=lead.environment) for name in ("s", "w"))
    scheduler.start(sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", address, "--no-dashboard")
    options = ("--nthreads", "1", "--no-nanny", "--no-dashboard")
    worker.start(sys.executable, "-m", "distributed.cli.dask_worker", address, *options)
    yield address
    for host in (worker, scheduler):
        host.lose_power()


def test_the_same_shards_run_on_dask_workers(lead: Program, dask: str, tmp_path: Path) -> None:
    request = [*SMALL, "scheme=fp32,8a8w,fp16", "backend=xnnpack", f"artifacts={tmp_path / 'artifacts'}"]
    ran = lead.run("run", "--json", f"--dask={dask}", *request)
    summary = passed_result_of(ran)
    assert (summary["outcomes"], summary["toolchain_calls"]) == ({"impossible": 1, "passed": 2}, 5)
    assert not (tmp_path / "artifacts" / "runs" / summary["run_id"] / "shards").exists()
