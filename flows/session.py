"""One run, from the lock of its store to its last notification. Every command that makes a run begins and ends it here.

A run holds the shared lock of its store. It has tags, an end state and artifacts in Prefect. When it has ended, it
sends the notifications, and removes the runs that exceed the limits of retention.
"""

import gc
import json
import secrets
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from qnnsweep.conf.backends import make_importable
from qnnsweep.conf.names import COMPILE_STAGES
from qnnsweep.conf.plan import Plan, PlannedCell
from qnnsweep.conf.recompare import recorded
from qnnsweep.conf.schema import Request
from qnnsweep.flows.cells.cases import CollectionCells
from qnnsweep.flows.cells.graph import Codes, Graph, ProgressCallback, Submission, await_result
from qnnsweep.flows.cells.overrides import wrong_overrides
from qnnsweep.flows.cells.resources import Resources, prepare
from qnnsweep.flows.runs import events, flow_state, notifications, results
from qnnsweep.flows.runs.artifacts import UPDATE_EVERY_S, CellsDone, create_artifacts, create_progress
from qnnsweep.flows.runs.files import link_files
from qnnsweep.flows.runs.retention import apply_retention, manifest
from qnnsweep.flows.server.signals import die_on_sigterm
from qnnsweep.tasks.errors import EnvironmentUnusable, RequestError, shortage_behind
from qnnsweep.tasks.records import RunFacts, Toolchain
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.results.rows import rows
from qnnsweep.tasks.storage import lock
from qnnsweep.tasks.storage.manifest import write_manifest
from qnnsweep.tasks.storage.store import Store

_RANDOM_BYTES = 6
"""The random part of a run's id. Two runs that start in the same second on two hosts must not share an id."""


def no_progress(_stage: str, _label: str, _state: str) -> None:
    """Do nothing with a progress update, beside Prefect's own tracking."""


def new_run_id(started: datetime) -> str:
    """Return the id of a run that starts now. Ids sort by start time."""
    return f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(_RANDOM_BYTES)}"


def command(overrides: Sequence[str], folders: Sequence[Path], *options: str, verb: str = "run") -> tuple[str, ...]:
    """Return the command line that repeats the run."""
    return ("qnnsweep", verb, *options, *(f"--config-dir={folder}" for folder in folders), *overrides)


class Session:
    """One run. `begin` holds what it needs; `finish`, `finish_part` or `end` writes what it leaves."""

    def __init__(
        self,
        plan: Plan,
        line: Sequence[str],
        on_progress: ProgressCallback = no_progress,
        *,
        verb: str | None = None,
        run_id: str | None = None,
        resources: Resources | None = None,
    ) -> None:
        """`line`: the command line that repeats the run. `on_progress`: is called with every progress update.

        `verb`: the kind of the run, by default the command. `run_id`: by default a new one. `resources`: by default
        they are prepared when the first cell is measured.
        """
        self.plan = plan
        self._line = tuple(line)
        self._verb = verb or "".join(line[1:2])
        self._on_progress = on_progress
        self._started, self._clock_s = datetime.now(UTC), time.monotonic()
        self.run_id = run_id or new_run_id(self._started)
        self.store = Store.at(plan.artifacts, plan.cache_folder, plan.object_store)
        self._resources = resources
        self._codes: Codes = {}
        self.reused = 0
        """The number of results that came from the cache."""
        self.result_names: dict[str, bool] = {}
        """Maps the name of every cached result of the cells to True if it was reused, to False if it was computed."""
        self.result: results.SweepResult | None = None
        """The result of the run, when it has ended."""

    @property
    def resources(self) -> Resources:
        """The workers and devices of the run. Raises EnvironmentUnusable."""
        if self._resources is None:
            self._resources = prepare(self.plan)
        return self._resources

    def measure(self, cells: Sequence[PlannedCell], *, check_overrides: bool = False) -> list[CellResult]:
        """Run every possible cell. If a model or an override is wrong, its cells fail, and the other cells run.

        `check_overrides`: whether overrides are checked before anything is compiled. The stage `quantize` checks them,
        too. Raises RequestError if every cell has a wrong model or a wrong override, and EnvironmentUnusable if an
        export raises it twice.
        """
        self._resources = self.resources.with_toolchains(cell.request.toolchain for cell in cells)
        make_importable(self.plan.folders)
        cells_done = CellsDone(cells, create_progress(self.run_id, len(cells)))

        def update(stage: str, label: str, state: str) -> None:
            cells_done.update(stage, label, state)
            self._on_progress(stage, label, state)

        graph = Graph(self.resources, update, self.run_id, self._codes)
        collections = CollectionCells(self.resources, self.plan.limits, update)
        of_models = [cell for cell in cells if not cell.is_collection]
        measured = iter(_run_graph(of_models, graph, cells_done, self.resources if check_overrides else None))
        tried = collections.run([cell for cell in cells if cell.is_collection])
        wrong = [cell.error for cell in tried if isinstance(cell.error, RequestError)]
        if wrong and len(wrong) == sum(cell.impossible is None for cell in cells):
            raise wrong[0]
        cells_done.end()
        of_collections = iter(tried)
        self.reused += graph.reused + sum(collections.result_names.values())
        self.result_names |= graph.result_names | collections.result_names
        return [next(of_collections if cell.is_collection else measured) for cell in cells]

    def facts(self, *, toolchain_calls: int, reused: int, toolchain: Toolchain | None) -> RunFacts:
        """Return the facts of the run, which ends now."""
        return RunFacts(
            run_id=self.run_id,
            started=self._started.isoformat(timespec="seconds"),
            seconds=time.monotonic() - self._clock_s,
            command=self._line,
            toolchain_calls=toolchain_calls,
            reused=reused,
            toolchain=toolchain,
            tables=self.store.display_path("tables"),
            report=self.store.display_path(results.report_name(self.run_id)),
            cells=json.dumps(recorded(self.plan) if self._line[1] == "run" else {}),
        )

    def finish(
        self,
        cells: Sequence[CellResult],
        more_rows: Mapping[str, Sequence[Row]] | None = None,
        *,
        toolchain: Toolchain | None = None,
    ) -> results.SweepResult:
        """Write the tables, the files and the report of the run. Only a run of the verb `run` is a night of the trends.

        `more_rows`: rows that are not about single cells, by table. `toolchain`: by default that of the workers.
        """
        run, contents = self._write_evidence(cells, self.store, toolchain)
        trend = self.plan.trend if self._verb == "run" else None
        return self.end(results.write(run, contents | dict(more_rows or {}), self.store, trend))

    def finish_part(self, cells: Sequence[CellResult], place: Store) -> None:
        """Write the rows of a part of a run to `place`."""
        run, contents = self._write_evidence(cells, place)
        results.write_rows(run, contents, place)

    def end(self, result: results.SweepResult) -> results.SweepResult:
        """Create the artifacts of the run, whose tables and report are written."""
        self.result = replace(result, fail_on=self.plan.prefect.fail_on)
        create_artifacts(self.result, self.store, self.plan.prefect.reports_url)
        return self.result

    def _write_evidence(
        self, cells: Sequence[CellResult], place: Store, toolchain: Toolchain | None = None
    ) -> tuple[RunFacts, dict[str, Sequence[Row]]]:
        """Write the manifest of the run to `place`, and link its files. Return its facts and the rows of its cells."""
        calls = self.resources.count_calls(COMPILE_STAGES)
        identity = toolchain or self.resources.workers.identity
        run = self.facts(toolchain_calls=calls, reused=self.reused, toolchain=identity)
        write_manifest(place, self.run_id, manifest(cells, self.result_names, self.store))
        link_files(cells, self.run_id, self.store)
        return run, {**rows(self.run_id, cells, identity, self.resources.costs, verb=self._verb)}


@contextmanager
def begin(
    plan: Plan,
    line: Sequence[str],
    on_progress: ProgressCallback = no_progress,
    *,
    part_of: str | None = None,
    verb: str | None = None,
) -> Generator[Session]:
    """Begin a run of a plan; see `Session`. At the end, send its notifications, and apply the limits of retention.

    `part_of`: the id of the run to which the cells belong; whoever joins the parts ends that run. Raises RequestError
    for a notification block that does not exist, and EnvironmentUnusable for a store that cannot be written.
    """
    session = Session(plan, line, on_progress, verb=verb, run_id=part_of)
    notifiers = [] if part_of else notifications.load_notifiers(plan.trend.notify)
    session.store.check_writable()
    with lock.shared(session.store), _frozen_gc(), die_on_sigterm():
        if part_of is None:
            flow_state.tag_request(plan)
        yield session
    if session.result is not None:
        events.emit_regressions(session.result, session.store)
        notifications.send(notifiers, session.result, session.store)
        apply_retention(plan.retention, session.store, session.run_id)


@contextmanager
def _frozen_gc() -> Generator[None]:
    """Freeze existing objects, so that the garbage collector scans only objects that this run allocates."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _run_graph(
    cells: Sequence[PlannedCell], graph: Graph, cells_done: CellsDone, for_overrides: Resources | None
) -> list[CellResult]:
    # Wait for every export before anything is compiled, because an export detects mistakes in a model's configuration.
    requests = [cell.request for cell in cells if cell.impossible is None and not graph.code_error(cell.request)]
    unreadable = [error for cell in cells if cell.impossible is None and (error := graph.code_error(cell.request))]
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
        for cell in cells
    ]
    _await(submissions, cells_done)
    results = [graph.result(cell, submitted) for cell, submitted in zip(cells, submissions, strict=True)]
    _divide(cells, submissions, results, graph, cells_done)
    return results


def _divide(
    cells: Sequence[PlannedCell],
    submissions: Sequence[dict[str, Submission]],
    results: list[CellResult],
    graph: Graph,
    cells_done: CellsDone,
) -> None:
    """Measure those cells again whose debug programs do not serve, each time with more debug programs.

    `results`: of the cells; those of the cells that were measured again are replaced. A cell ends when its debug
    programs serve, or when more of them do not help. If an attempt fails, the result before it stays. If the files of a
    capture cannot be read, its cell fails, and no other one.
    """
    latest = dict(enumerate(submissions))
    while latest:
        before, latest = latest, {}
        for number, of_cell in before.items():
            try:
                again = graph.divide_again(results[number], of_cell)
            except Exception as error:  # noqa: BLE001 - as in a stage: damaged files, hostile files, a shortage
                failure = shortage_behind(error) or error
                results[number] = replace(results[number], comparison=None, cures=None, stage="compare", error=failure)
                continue
            if again is not None:
                latest[number] = again
        _await([*latest.values()], cells_done)
        divided = {number: graph.result(cells[number], of_cell) for number, of_cell in latest.items()}
        latest = {number: of_cell for number, of_cell in latest.items() if divided[number].error is None}
        for number in latest:
            results[number] = divided[number]


def _await(submissions: Sequence[dict[str, Submission]], cells_done: CellsDone) -> None:
    """Wait for the stages of cells."""
    futures = {submission.key: submission.future for cell in submissions for submission in cell.values()}
    # Count the futures that are done. Their states cannot be polled: a task whose input failed stays pending forever.
    done = threading.Semaphore(0)
    for future in futures.values():
        future.add_done_callback(lambda _: done.release())
    for _ in futures:
        while not done.acquire(timeout=UPDATE_EVERY_S):
            cells_done.show()
        cells_done.show()


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
