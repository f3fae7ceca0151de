"""One sweep: a plan's cells through all stages, then the tables and the report."""

from __future__ import annotations

import gc
import os
import secrets
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil
from prefect import flow
from prefect.runtime import flow_run
from prefect.task_runners import ThreadPoolTaskRunner

from conf.impossible import suits
from conf.load import load
from conf.names import COMPILE_STAGES
from conf.plan import Plan
from conf.schema import DeviceConfig, LimitsConfig, RunnerKind, SocConfig
from flows import costs, leases, notify, results
from flows.artifacts import UPDATE_EVERY_S, CellsDone, create_artifacts, create_progress
from flows.cells import Graph, Means, Watch
from flows.files import lay_out
from flows.retention import holdings, retained
from tasks.devices.farm import DeviceLock, Farm
from tasks.devices.native_runner import native_files
from tasks.errors import EnvironmentUnusable, RequestError
from tasks.outcome import CellResult
from tasks.records import Toolchain
from tasks.report import RunFacts
from tasks.rows import rows
from tasks.storage.holdings import write_holdings
from tasks.storage.occupancy import in_use
from tasks.storage.store import Store
from tasks.toolchain.child import Children, check_temporary_folder
from tasks.toolchain.places import Places
from tasks.toolchain.sdk import find_sdk, identity

MIB, GIB = 2**20, 2**30
LEAST_FREE_BYTES = 64 * MIB
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
    hearers = notify.blocks(plan.trend.notify)
    with in_use(store), _libraries_at_rest():
        began = Begun.now()
        means = prepare(plan, device_lock=leases.exclusive)
        found = computed(plan, means, began.run_id)
        run = began.ended(means, found.reused, command(overrides, folders))
        write_holdings(store, run.run_id, holdings(found.cells, found.kept, store))
        lay_out(found.cells, run.run_id, store)
        contents = rows(run.run_id, found.cells, run.toolchain, means.children.took)
        result = results.write(run, contents, store, plan.trend)
        create_artifacts(result, store)
    notify.tell(hearers, result, store)
    retained(plan.retention, store)
    return result


@contextmanager
def _libraries_at_rest() -> Generator[None]:
    """The garbage collector walks through what a sweep makes, not each time through all that was there before."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """A run that has begun."""

    run_id: str
    started: datetime
    clock_s: float

    @classmethod
    def now(cls, run_id: str | None = None) -> Begun:
        started = datetime.now(UTC)
        return cls(run_id=run_id or new_run_id(started), started=started, clock_s=time.monotonic())

    def ended(self, means: Means, reused: int, command: tuple[str, ...]) -> RunFacts:
        """The facts of a run whose cells were all computed with these means."""
        calls = sum(count for stage, count in means.children.calls.items() if stage in COMPILE_STAGES)
        return self.facts(means.store, command, toolchain_calls=calls, reused=reused, toolchain=means.children.identity)

    def facts(
        self, store: Store, command: tuple[str, ...], *, toolchain_calls: int, reused: int, toolchain: Toolchain | None
    ) -> RunFacts:
        return RunFacts(
            run_id=self.run_id,
            started=self.started.isoformat(timespec="seconds"),
            seconds=time.monotonic() - self.clock_s,
            command=command,
            toolchain_calls=toolchain_calls,
            reused=reused,
            toolchain=toolchain,
            tables=store.shown("tables"),
            report=store.shown(results.report_name(self.run_id)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Computed:
    """What became of every cell of a plan, and which kept results were found or made: name to whether it was found."""

    cells: list[CellResult]
    reused: int
    kept: dict[str, bool]


def command(overrides: Sequence[str], folders: Sequence[Path], *options: str) -> tuple[str, ...]:
    """What a person would type to have the same run."""
    return ("qnnsweep", "run", *options, *(f"--config-dir={folder}" for folder in folders), *overrides)


def new_run_id(started: datetime) -> str:
    """Run ids sort by start time."""
    return f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def prepare(plan: Plan, *, device_lock: DeviceLock | None = None) -> Means:
    """Open the store, find QNN, set the limits. Raises EnvironmentUnusable.

    Without a `device_lock` this process alone is kept from using a device twice at a time.
    """
    store = Store.at(plan.artifacts, plan.cache_folder)
    store.try_out()
    store.sweep_partial()
    if (free := shutil.disk_usage(store.root).free) < LEAST_FREE_BYTES:
        key = "cache_folder" if store.url else "artifacts"
        raise EnvironmentUnusable(
            f"{key}={store.root}: {free / MIB:.0f} MiB free on its disk, a sweep wants at least "
            f"{LEAST_FREE_BYTES / MIB:.0f}",
            remedy=f"free some, or set {key}=FOLDER to a folder on another disk",
        )
    check_temporary_folder()
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
    farm = Farm(host_environment=environment, folder=store.root / "devices", device_lock=device_lock)
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


def computed(plan: Plan, means: Means, run_id: str) -> Computed:
    """Run every possible cell. Raises the RequestError or EnvironmentUnusable that a model's export meets."""
    importable(plan)
    done, heard = CellsDone(plan.cells, create_progress(run_id, len(plan.cells))), watcher.get()

    def watch(stage: str, whose: str, state: str) -> None:
        done.tell(stage, whose, state)
        heard(stage, whose, state)

    graph = Graph(means, watch, run_id)
    with ended_by_sigterm():
        cells = _run(plan, graph, done)
    return Computed(cells=cells, reused=graph.reused, kept=graph.kept)


@contextmanager
def ended_by_sigterm() -> Generator[None]:
    """Here and now, as by a kill -9, which a sweep survives. Prefect would run all that was submitted to its end."""
    if threading.current_thread() is not threading.main_thread():  # whose business signals are
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
    futures = {work.key: work.future for each in works for work in each.values()}
    # Not their states: what stands on a failed task stays pending for ever.
    ended = threading.Semaphore(0)
    for future in futures.values():
        future.add_done_callback(lambda _: ended.release())
    for _ in futures:
        while not ended.acquire(timeout=UPDATE_EVERY_S):
            done.show()
        done.show()
    done.end()
    return [graph.result(cell, work) for cell, work in zip(plan.cells, works, strict=True)]
