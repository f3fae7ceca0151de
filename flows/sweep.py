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
from flows import costs, leases, results
from flows.artifacts import UPDATE_EVERY_S, CellsDone, create_artifacts, create_progress
from flows.cells import Graph, Means, Watch
from flows.files import lay_out
from flows.retention import holdings, retained
from tasks.devices.farm import Exclusion, Farm
from tasks.devices.native import native_files
from tasks.errors import EnvironmentUnusable, RequestError
from tasks.outcome import CellResult
from tasks.report import RunFacts
from tasks.rows import rows
from tasks.storage.holdings import write_holdings
from tasks.storage.occupancy import in_use
from tasks.storage.store import Store
from tasks.toolchain.child import Children
from tasks.toolchain.places import Places
from tasks.toolchain.sdk import find_sdk, identity

MIB, GIB = 2**20, 2**30
LEAST_FREE_BYTES = 64 * MIB
COMPILING = ("export", "quantize", "lower")
"""The stages whose children are toolchain calls; the others only run operators again."""
MOST_MEMORY = 0.8
"""Of the machine's, for toolchain children; the rest is for devices' simulators, Prefect and us."""

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
    store = Store.at(plan.artifacts, plan.cache_folder)
    store.try_out()
    with in_use(store):
        result = _swept(plan, overrides, folders)
    retained(plan.retention, store)
    return result


def _swept(plan: Plan, overrides: list[str], folders: list[Path]) -> results.SweepResult:
    started, began = datetime.now(UTC), time.monotonic()
    run_id = new_run_id(started)
    means = prepare(plan, exclusion=leases.exclusive)
    importable(plan)
    done, heard = CellsDone(plan.cells, create_progress(run_id, len(plan.cells))), watcher.get()

    def watch(stage: str, whose: str, state: str) -> None:
        done.tell(stage, whose, state)
        heard(stage, whose, state)

    graph = Graph(means, watch, run_id)
    cells = _run(plan, graph, done)
    contents = rows(run_id, cells, means.children.identity, means.children.took)
    store = means.store
    run = RunFacts(
        run_id=run_id,
        started=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - began,
        command=("qnnsweep", "run", *(f"--config-dir={folder}" for folder in folders), *overrides),
        toolchain_calls=sum(count for stage, count in means.children.calls.items() if stage in COMPILING),
        reused=graph.reused,
        toolchain=means.children.identity,
        tables=store.shown("tables"),
        report=store.shown(results.report_name(run_id)),
    )
    write_holdings(store, run_id, holdings(cells, graph.kept, store))
    lay_out(cells, run_id, store)
    result = results.write(run, contents, store, plan.trend)
    create_artifacts(result, store)
    return result


def new_run_id(started: datetime) -> str:
    """Run ids sort by start time."""
    return f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def prepare(plan: Plan, *, exclusion: Exclusion | None = None) -> Means:
    """Open the store, find QNN, set the limits. Raises EnvironmentUnusable.

    Without an `exclusion` this process alone is kept from using a device twice at a time.
    """
    store = Store.at(plan.artifacts, plan.cache_folder)
    store.try_out()
    store.sweep_partial()
    if (free := shutil.disk_usage(store.root).free) < LEAST_FREE_BYTES:
        key = "cache_folder" if store.url else "artifacts"
        raise EnvironmentUnusable(
            f"{key}={store.root}: {free / MIB:.0f} MiB free on its disk, a sweep wants at least "
            f"{LEAST_FREE_BYTES / MIB:.0f}; free some, or set {key}=FOLDER to a folder on another disk"
        )
    links = store.root / "toolchain"
    sdk = find_sdk(os.environ, links)
    environment = sdk.environment(os.environ)
    children = Children(
        identity=identity(sdk),
        environment=environment,
        store=store,
        places=places(plan.limits),
        deadline_s=plan.limits.child_deadline_s,
        memory_bytes=int(plan.limits.child_memory_gib * GIB),
        expected=costs.expected(store),
    )
    for device, soc in _native(plan):
        native_files(device, soc.arch, os.environ)
    farm = Farm(host_environment=environment, folder=store.root / "devices", exclusion=exclusion)
    return Means(store=store, children=children, farm=farm)


def _native(plan: Plan) -> Iterator[tuple[DeviceConfig, SocConfig]]:
    """Devices with the native runner, and the SoCs that it is to run programs for."""
    for cell in plan.cells:
        for device in cell.request.devices:
            if device.runner is RunnerKind.native and cell.impossible is None and suits(device, cell.request):
                yield device, cell.request.soc


def places(limits: LimitsConfig) -> Places:
    """This machine's cores, and the memory that toolchain children may have together."""
    memory = psutil.virtual_memory().total * MOST_MEMORY if limits.memory_gib is None else limits.memory_gib * GIB
    return Places(parallel=limits.parallel or os.cpu_count() or 1, memory_bytes=int(memory))


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
