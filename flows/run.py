"""The start, the cells and the end of a run. The flows `sweep`, `shard`, `spread` and `recompare` use these parts."""

import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from qnnsweep.conf.backends import make_importable
from qnnsweep.conf.names import COMPILE_STAGES
from qnnsweep.conf.plan import Plan
from qnnsweep.conf.schema import Request, TrendConfig
from qnnsweep.flows.cases import CollectionCells
from qnnsweep.flows.graph import Codes, Graph, ProgressCallback, Submission, await_result
from qnnsweep.flows.overrides import wrong_overrides
from qnnsweep.flows.resources import Resources
from qnnsweep.flows.runs import results
from qnnsweep.flows.runs.artifacts import UPDATE_EVERY_S, CellsDone, create_progress
from qnnsweep.flows.runs.files import link_files
from qnnsweep.flows.runs.retention import manifest
from qnnsweep.flows.server.signals import die_on_sigterm
from qnnsweep.tasks.errors import EnvironmentUnusable, RequestError
from qnnsweep.tasks.records import RunFacts, Toolchain
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.results.rows import rows
from qnnsweep.tasks.storage.manifest import write_manifest
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.workers.supervisor import CallCost

_RANDOM_BYTES = 6
"""The random part of a run's id. Two runs that start in the same second on two hosts must not share an id."""

on_progress: ContextVar[ProgressCallback] = ContextVar("on_progress", default=lambda _stage, _label, _state: None)
"""The function that is called with every progress update, in addition to Prefect's own tracking.

A context variable holds the function: it cannot be a flow's parameter, because Prefect stores parameters as JSON.
"""

overrides_with_secrets: ContextVar[Sequence[str] | None] = ContextVar("overrides_with_secrets", default=None)
"""The overrides of the flow that this process runs, if secrets are masked in the flow's parameters. None: no secrets.

Prefect stores the parameters of a flow. This variable is in memory only.
"""

loaded_plan: ContextVar[Plan | None] = ContextVar("loaded_plan", default=None)
"""The plan of the flow that this process runs, if it has been read already. None: the flow reads it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStart:
    """The id and the start time of a run."""

    run_id: str
    started: datetime
    clock_s: float

    @classmethod
    def now(cls, run_id: str | None = None) -> "RunStart":
        """Return the start of a run that starts now, by default with a new id. New ids sort by start time."""
        started = datetime.now(UTC)
        new_id = f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(_RANDOM_BYTES)}"
        return cls(run_id=run_id or new_id, started=started, clock_s=time.monotonic())

    def compiled_facts(self, resources: Resources, reused: int, command: tuple[str, ...]) -> RunFacts:
        """Return the facts of a run that ends now and whose cells were all run with these resources."""
        calls, toolchain = resources.count_calls(COMPILE_STAGES), resources.workers.identity
        return self.facts(resources.store, command, toolchain_calls=calls, reused=reused, toolchain=toolchain)

    def facts(
        self, store: Store, command: tuple[str, ...], *, toolchain_calls: int, reused: int, toolchain: Toolchain | None
    ) -> RunFacts:
        """Return the facts of a run that ends now."""
        return RunFacts(
            run_id=self.run_id,
            started=self.started.isoformat(timespec="seconds"),
            seconds=time.monotonic() - self.clock_s,
            command=command,
            toolchain_calls=toolchain_calls,
            reused=reused,
            toolchain=toolchain,
            tables=store.display_path("tables"),
            report=store.display_path(results.report_name(self.run_id)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CellResults:
    """The results of all cells of a plan."""

    cells: list[CellResult]
    reused: int
    """The number of results that came from the cache."""
    result_names: dict[str, bool]
    """Maps the name of every cached result of the cells to True if it was reused, to False if it was computed."""


def command(overrides: Sequence[str], folders: Sequence[Path], *options: str, verb: str = "run") -> tuple[str, ...]:
    """Return the command line that repeats the run."""
    return ("qnnsweep", verb, *options, *(f"--config-dir={folder}" for folder in folders), *overrides)


def run_cells(
    plan: Plan, resources: Resources, run_id: str, codes: Codes | None = None, *, check_overrides: bool = False
) -> CellResults:
    """Run every possible cell. If a model or an override is wrong, its cells fail, and the other cells run.

    `codes`: the digests of the models' code, which calls for the same run share; see `Graph`.
    `check_overrides`: whether overrides are checked before anything is compiled. The stage `quantize` checks them, too.
    Raises RequestError if every cell has a wrong model or a wrong override, and EnvironmentUnusable if an export raises
    it twice.
    """
    make_importable(plan.folders)
    cells_done, callback = CellsDone(plan.cells, create_progress(run_id, len(plan.cells))), on_progress.get()

    def update(stage: str, label: str, state: str) -> None:
        cells_done.update(stage, label, state)
        callback(stage, label, state)

    graph = Graph(resources, update, run_id, codes)
    collections = CollectionCells(resources, plan.limits, update)
    with die_on_sigterm():
        of_models = replace(plan, cells=tuple(cell for cell in plan.cells if not cell.is_collection))
        cells = iter(_run_graph(of_models, graph, cells_done, resources if check_overrides else None))
        tried = collections.run([cell for cell in plan.cells if cell.is_collection])
    wrong = [cell.error for cell in tried if isinstance(cell.error, RequestError)]
    if wrong and len(wrong) == sum(cell.impossible is None for cell in plan.cells):
        raise wrong[0]
    cells_done.end()
    of_collections = iter(tried)
    ordered = [next(of_collections if cell.is_collection else cells) for cell in plan.cells]
    return CellResults(
        cells=ordered,
        reused=graph.reused + sum(collections.result_names.values()),
        result_names=graph.result_names | collections.result_names,
    )


def _run_graph(plan: Plan, graph: Graph, cells_done: CellsDone, for_overrides: Resources | None) -> list[CellResult]:
    # Wait for every export before anything is compiled, because an export detects mistakes in a model's configuration.
    requests = [cell.request for cell in plan.cells if cell.impossible is None and not graph.code_error(cell.request)]
    unreadable = [error for cell in plan.cells if cell.impossible is None and (error := graph.code_error(cell.request))]
    unusable = [export for export, error in _exports(graph, requests) if isinstance(error, EnvironmentUnusable)]
    for export in unusable:
        graph.forget(export)
    # A disk that was full for a moment must not end all cells. If it is still full, this attempt fails too.
    errors = [*unreadable, *(error for _, error in _exports(graph, requests))]
    if lasting := [error for error in errors if isinstance(error, EnvironmentUnusable)]:
        raise lasting[0]
    if wrong := _reason_to_refuse(graph, requests, unreadable, for_overrides):
        raise wrong
    submissions = [
        graph.cell(cell.request) if cell.impossible is None and not graph.code_error(cell.request) else {}
        for cell in plan.cells
    ]
    futures = {submission.key: submission.future for cell in submissions for submission in cell.values()}
    # Count the futures that are done. Their states cannot be polled: a task whose input failed stays pending forever.
    done = threading.Semaphore(0)
    for future in futures.values():
        future.add_done_callback(lambda _: done.release())
    for _ in futures:
        while not done.acquire(timeout=UPDATE_EVERY_S):
            cells_done.show()
        cells_done.show()
    return [graph.result(cell, submitted) for cell, submitted in zip(plan.cells, submissions, strict=True)]


def _exports(graph: Graph, requests: Sequence[Request]) -> list[tuple[Submission, BaseException | None]]:
    """Wait for the exports of all requests. Return each export with its error, or with None if it has no error."""
    exports = {export.key: export for export in [graph.export(request) for request in requests]}
    return [(export, await_result(export.future)[1]) for export in exports.values()]


def _reason_to_refuse(
    graph: Graph, requests: Sequence[Request], unreadable: Sequence[RequestError], for_overrides: Resources | None
) -> RequestError | None:
    """Return the first error if no cell can be compiled, because every cell has a wrong model or a wrong override.

    `requests`: those of the cells whose exports have ended. `unreadable`: the errors of the other cells.
    """
    exports = {id(request): await_result(graph.export(request).future) for request in requests}
    errors = [exports[id(request)][1] for request in requests]
    if for_overrides is not None:
        overrides = wrong_overrides(requests, lambda request: exports[id(request)][0], for_overrides)
        errors = [error or override for error, override in zip(errors, overrides, strict=True)]
    wrong = [error for error in (*unreadable, *errors) if isinstance(error, RequestError)]
    return wrong[0] if wrong and len(wrong) == len(unreadable) + len(errors) else None


def finish_run(
    run: RunFacts,
    done: CellResults,
    resources: Resources,
    *,
    trend: TrendConfig | None,
    costs: Sequence[CallCost] = (),
    verb: str = "run",
    more_rows: Mapping[str, Sequence[Row]] | None = None,
) -> results.SweepResult:
    """Write a run's manifest, the links to its files, its tables and its report into the store.

    `trend`: how to compare the run with earlier runs; if None, the run is not compared.
    `costs`: the costs of toolchain calls. They become the rows of the table `work`.
    `more_rows`: rows that are not about single cells, by table.
    """
    store = resources.store
    write_manifest(store, run.run_id, manifest(done.cells, done.result_names, store))
    link_files(done.cells, run.run_id, store)
    contents = rows(run.run_id, done.cells, run.toolchain or resources.workers.identity, costs, verb=verb) | dict(
        more_rows or {}
    )
    return results.write(run, contents, store, trend)
