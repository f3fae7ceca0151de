"""One sweep: a plan's cells through all stages, then the tables and the report."""

from __future__ import annotations

import gc
import shlex
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from prefect import flow
from prefect.runtime import flow_run
from prefect.task_runners import ThreadPoolTaskRunner

from conf.load import load
from conf.plan import Plan
from flows.graph import Graph, Watch
from flows.resources import Resources, prepare
from flows.run import RunStart, command
from flows.runs import notifications, results
from flows.runs.artifacts import UPDATE_EVERY_S, CellsDone, create_artifacts, create_progress
from flows.runs.files import link_files
from flows.runs.retention import apply_retention, holdings
from flows.server import leases
from tasks.errors import EnvironmentUnusable, RequestError
from tasks.results.outcome import CellResult
from tasks.results.rows import rows
from tasks.storage.holdings import write_holdings
from tasks.storage.occupancy import in_use
from tasks.storage.store import Store

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
    notifiers = notifications.load_notifiers(plan.trend.notify)
    with in_use(store), _libraries_at_rest():
        run_start = RunStart.now()
        resources = prepare(plan, device_lock=leases.exclusive)
        found = run_cells(plan, resources, run_start.run_id)
        run = run_start.ended(resources, found.reused, command(overrides, folders))
        write_holdings(store, run.run_id, holdings(found.cells, found.result_names, store))
        link_files(found.cells, run.run_id, store)
        contents = rows(run.run_id, found.cells, run.toolchain, resources.children.took)
        result = results.write(run, contents, store, plan.trend)
        create_artifacts(result, store)
    notifications.send(notifiers, result, store)
    apply_retention(plan.retention, store)
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
class CellResults:
    """What became of every cell of a plan, and which kept results were found or made: name to whether it was found."""

    cells: list[CellResult]
    reused: int
    result_names: dict[str, bool]


def importable(plan: Plan) -> None:
    """Let Python find modules that lie beside the user's own configuration."""
    sys.path += [folder for folder in map(str, plan.folders) if folder not in sys.path]


def run_cells(plan: Plan, resources: Resources, run_id: str) -> CellResults:
    """Run every possible cell. Raises the RequestError or EnvironmentUnusable that a model's export meets."""
    importable(plan)
    done, heard = CellsDone(plan.cells, create_progress(run_id, len(plan.cells))), watcher.get()

    def watch(stage: str, label: str, state: str) -> None:
        done.update(stage, label, state)
        heard(stage, label, state)

    graph = Graph(resources, watch, run_id)
    with ended_by_sigterm():
        cells = _run(plan, graph, done)
    return CellResults(cells=cells, reused=graph.reused, result_names=graph.result_names)


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
    for submission in exports:
        submission.future.wait()
        error = submission.future.state.result(raise_on_failure=False)
        if isinstance(error, RequestError | EnvironmentUnusable):
            raise error
    submissions = [graph.cell(cell.request) if cell.impossible is None else {} for cell in plan.cells]
    futures = {submission.key: submission.future for each in submissions for submission in each.values()}
    # Not their states: what stands on a failed task stays pending for ever.
    ended = threading.Semaphore(0)
    for future in futures.values():
        future.add_done_callback(lambda _: ended.release())
    for _ in futures:
        while not ended.acquire(timeout=UPDATE_EVERY_S):
            done.show()
        done.show()
    done.end()
    return [graph.result(cell, submission) for cell, submission in zip(plan.cells, submissions, strict=True)]
