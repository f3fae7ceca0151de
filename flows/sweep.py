"""One sweep: a plan's cells through all stages, then the tables and the report."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path

import psutil
from prefect import flow
from prefect.runtime import flow_run
from prefect.task_runners import ThreadPoolTaskRunner

from conf.impossible import suits
from conf.load import load
from conf.plan import Plan
from conf.schema import DeviceConfig, LimitsConfig, RunnerKind, SocConfig
from flows import leases, results
from flows.artifacts import UPDATE_EVERY_S, CellsDone, create_artifacts, create_progress
from flows.cells import Graph, Means, Watch
from flows.files import lay_out
from tasks.devices.farm import Exclusion, Farm
from tasks.devices.native import native_files
from tasks.errors import EnvironmentUnusable, RequestError
from tasks.outcome import CellResult
from tasks.report import RunFacts
from tasks.rows import rows
from tasks.storage.store import Store
from tasks.toolchain.child import Children
from tasks.toolchain.sdk import find_sdk, identity

MIB, GIB = 2**20, 2**30
LEAST_FREE_BYTES = 64 * MIB
COMPILING = ("export", "quantize", "lower")
"""The stages whose children are toolchain calls; the others only run operators again."""
TYPICAL_CHILD_GIB = 5.0
"""What the largest model seen needed to be lowered: ViT-B/16, 4.4 GiB."""

watcher: ContextVar[Watch] = ContextVar("watcher", default=lambda _stage, _subject, _state: None)
"""Who hears of a sweep's progress besides Prefect."""


@flow(
    name="sweep",
    flow_run_name=lambda: shlex.join(["sweep", *flow_run.parameters["overrides"]]),
    # Its threads only wait: `Children` and `Farm` bound what runs at once.
    task_runner=ThreadPoolTaskRunner(),  # type: ignore[arg-type]
    validate_parameters=False,
)
def sweep(overrides: list[str], config_dirs: list[str] | None = None) -> results.SweepResult:
    """Run every cell that the overrides ask for (Hydra's grammar); see `qnnsweep run --help`.

    Raises RequestError, before any work, for a request that is wrong, and EnvironmentUnusable for a machine that is.
    """
    folders = [Path(folder) for folder in config_dirs or ()]
    plan = load(overrides, config_dirs=folders)
    started, began = datetime.now(UTC), time.monotonic()
    run_id = new_run_id(started)
    means = prepare(plan, exclusion=leases.exclusive)
    importable(plan)
    done, heard = CellsDone(plan.cells, create_progress(run_id, len(plan.cells))), watcher.get()

    def watch(stage: str, whose: str, state: str) -> None:
        done.tell(stage, whose, state)
        heard(stage, whose, state)

    graph = Graph(means, watch)
    cells = _run(plan, graph, done)
    contents = rows(run_id, cells, means.children.identity)
    artifacts = Path(plan.artifacts)
    run = RunFacts(
        run_id=run_id,
        started=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - began,
        command=("qnnsweep", "run", *(f"--config-dir={folder}" for folder in folders), *overrides),
        toolchain_calls=sum(count for stage, count in means.children.calls.items() if stage in COMPILING),
        reused=graph.reused,
        toolchain=means.children.identity,
        tables=str(artifacts / "tables"),
        report=str(results.report_path(artifacts, run_id)),
    )
    lay_out(cells, results.report_path(artifacts, run_id).with_name("files"), means.store)
    result = results.write(run, contents, means.store)
    create_artifacts(run, result.cells)
    return result


def new_run_id(started: datetime) -> str:
    """Run ids sort by start time."""
    return f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def prepare(plan: Plan, *, exclusion: Exclusion | None = None) -> Means:
    """Open the store, find QNN, set the limits. Raises EnvironmentUnusable.

    Without an `exclusion` this process alone is kept from using a device twice at a time.
    """
    artifacts = Path(plan.artifacts)
    store = Store.open(artifacts)
    store.sweep_partial()
    if (free := shutil.disk_usage(artifacts).free) < LEAST_FREE_BYTES:
        raise EnvironmentUnusable(
            f"artifacts={artifacts}: {free / MIB:.0f} MiB free on its disk, a sweep wants at least "
            f"{LEAST_FREE_BYTES / MIB:.0f}; free some, or set artifacts=FOLDER to a folder on another disk"
        )
    links = store.root / "toolchain"
    sdk = find_sdk(os.environ, links)
    environment = sdk.environment(os.environ)
    children = Children(
        identity=identity(sdk),
        environment=environment,
        store=store,
        parallel=plan.limits.parallel or fitting(plan.limits),
        deadline_s=plan.limits.child_deadline_s,
        memory_bytes=int(plan.limits.child_memory_gib * GIB),
    )
    for device, soc in _native(plan):
        native_files(device, soc.arch, os.environ)
    farm = Farm(host_environment=environment, folder=artifacts / "devices", exclusion=exclusion)
    return Means(store=store, children=children, farm=farm)


def _native(plan: Plan) -> Iterator[tuple[DeviceConfig, SocConfig]]:
    """Devices with the native runner, and the SoCs that it is to run programs for."""
    for cell in plan.cells:
        for device in cell.request.devices:
            if device.runner is RunnerKind.native and cell.impossible is None and suits(device, cell.request):
                yield device, cell.request.soc


def fitting(limits: LimitsConfig) -> int:
    """How many toolchain children this machine's cores and memory take at once."""
    each = min(TYPICAL_CHILD_GIB, limits.child_memory_gib)
    return max(1, min(os.cpu_count() or 1, int(psutil.virtual_memory().total / GIB / each)))


def importable(plan: Plan) -> None:
    """Let Python find modules that lie beside the user's own configuration."""
    sys.path += [folder for folder in map(str, plan.folders) if folder not in sys.path]


def _run(plan: Plan, graph: Graph, done: CellsDone) -> list[CellResult]:
    possible = [cell for cell in plan.cells if cell.impossible is None]
    # Every export ends before anything is compiled: what is wrong with a model's configuration shows there.
    exports = [graph.export(cell.request) for cell in possible]
    for work in exports:
        work.future.wait()
        error = work.future.state.result(raise_on_failure=False)
        if isinstance(error, RequestError | EnvironmentUnusable):
            raise error
    works = [graph.cell(cell.request) if cell.impossible is None else {} for cell in plan.cells]
    for work in (work for each in works for work in each.values()):
        work.future.wait(timeout=UPDATE_EVERY_S)
        # Only the state of what has not ended is asked of the server.
        while not work.future.state.is_final():
            done.show()
            work.future.wait(timeout=UPDATE_EVERY_S)
        done.show()
    done.end()
    return [graph.result(cell, work) for cell, work in zip(plan.cells, works, strict=True)]
