"""The flow of the operator atlas: every case of a collection, in every scheme and on every SoC of a plan."""

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path

from prefect.futures import PrefectFuture

from conf.atlas_plan import planned
from conf.plan import Plan, PlannedCell
from conf.schema import Request
from flows.graph import await_result, comparison_options, lowering_options, result_names, work_label
from flows.resources import Resources, prepare
from flows.run import CellResults, RunStart, command, finish_run, loaded_plan, overrides_with_secrets
from flows.runs import results
from flows.runs.artifacts import create_artifacts
from flows.server import leases
from flows.server.decorator import run_flow
from flows.server.signals import die_on_sigterm
from tasks.list_cases import list_cases_task
from tasks.records import CaseOutcomes, OperatorCases
from tasks.report.atlas import atlas_markdown, render_atlas
from tasks.results.outcome import CellResult
from tasks.stage import configure_task
from tasks.storage import lock
from tasks.storage.store import Store
from tasks.toolchain.source_digest import code_digest
from tasks.try_cases import try_cases_task

BATCH = 24
"""The largest number of cases of a task run."""

on_batch: ContextVar[Callable[[int, int], None]] = ContextVar("on_batch", default=lambda _ended, _all: None)
"""The function that is called with the number of batches that have ended, and of all. See `flows.run.on_progress`."""

Batches = list[PrefectFuture[CaseOutcomes]]


@run_flow()
def atlas(overrides: list[str], config_dirs: list[str] | None = None) -> results.SweepResult:
    """Measure every case of the plan's collections. `overrides`: as in `flows.sweep.sweep`.

    Raises RequestError for a wrong request, and EnvironmentUnusable for an unusable machine.
    """
    folders = [Path(folder) for folder in config_dirs or ()]
    plan = loaded_plan.get() or planned(overrides_with_secrets.get() or overrides, folders)
    store = Store.at(plan.artifacts, plan.cache_folder, plan.object_store)
    with lock.shared(store):
        run_start = RunStart.now()
        resources = prepare(plan, device_lock=leases.exclusive)
        with die_on_sigterm():
            done = _run(plan, resources)
        run = run_start.compiled_facts(resources, done.reused, command(overrides, folders, verb="atlas"))
        result = finish_run(run, done, resources, trend=None, costs=resources.costs, verb="atlas")
        pages = {"atlas.html": render_atlas(run, result.atlas), "atlas.md": atlas_markdown(run, result.atlas)}
        for name, page in pages.items():
            store.files.write(f"{results.run_folder(run.run_id)}/{name}", page.encode())
        create_artifacts(result, store, plan.prefect.reports_url)
    return result


def _run(plan: Plan, resources: Resources) -> CellResults:
    """List the cases of every collection, then try them in batches. Every batch is a task run."""
    possible = [cell.request for cell in plan.cells if cell.impossible is None]
    codes = {request.model.name: code_digest(request.model) for request in possible}
    lists = {
        (request.model.name, request.toolchain.name): _list(request, codes[request.model.name], resources)
        for request in possible
    }
    submitted: list[tuple[PlannedCell, Batches]] = []
    for cell in plan.cells:
        batches: Batches = []
        if cell.impossible is None:
            request = cell.request
            cases = lists[request.model.name, request.toolchain.name].result()
            batches = [*_batches(request, cases, codes[request.model.name], resources)]
        submitted.append((cell, batches))
    _wait([future for _, batches in submitted for future in batches])
    futures = [*lists.values(), *(future for _, batches in submitted for future in batches)]
    names = result_names(futures)
    cells = [_cell_result(cell, batches, resources) for cell, batches in submitted]
    return CellResults(cells=cells, reused=sum(names.values()), result_names=names)


def _list(request: Request, code: str, resources: Resources) -> PrefectFuture[OperatorCases]:
    name = f"list_cases {work_label('export', request)}"
    task = configure_task(list_cases_task, name, store=resources.store, on_change=lambda _state: None)
    return task.submit(request.model, code, store=resources.store, workers=resources.workers_of(request))


def _batches(
    request: Request, cases: OperatorCases, code: str, resources: Resources
) -> Iterator[PrefectFuture[CaseOutcomes]]:
    """Submit the cases of a cell in batches."""
    for start in range(0, len(cases.cases), BATCH):
        batch = OperatorCases(cases=cases.cases[start : start + BATCH])
        name = f"try_cases {work_label('lower', request)} from {start}"
        task = configure_task(try_cases_task, name, store=resources.store, on_change=lambda _state: None)
        yield task.submit(
            batch,
            request.model,
            request.soc,
            lowering_options(request),
            request.measure,
            comparison_options(request),
            code,
            store=resources.store,
            workers=resources.workers_of(request),
        )


def _wait(futures: Sequence[PrefectFuture[CaseOutcomes]]) -> None:
    """Wait for all batches, and report how many have ended."""
    report = on_batch.get()
    for ended, future in enumerate(futures, 1):
        future.wait()
        report(ended, len(futures))


def _cell_result(cell: PlannedCell, batches: Batches, resources: Resources) -> CellResult:
    """Return the outcomes of a cell's cases, or the error of the first batch that failed."""
    result = CellResult(request=cell.request, impossible=cell.impossible)
    if cell.impossible is not None:
        return result
    result.toolchain, result.stage = resources.workers_of(cell.request).identity, "lower"
    parts: list[CaseOutcomes] = []
    for future in batches:
        part, error = await_result(future)
        if error is not None:
            result.error = error
            break
        parts.append(part)
    result.cases = tuple(outcome for part in parts for outcome in part.outcomes)
    result.case_logs = tuple(log for part in parts for log in part.logs)
    return result
