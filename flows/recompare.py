"""The flow that compares a past run's captures again with changed tolerances, without a device or a compilation."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from prefect.futures import PrefectFuture

from qnnsweep.conf.backends import make_importable
from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.load import load_again
from qnnsweep.conf.plan import Plan, PlannedCell
from qnnsweep.conf.recompare import check_changeable
from qnnsweep.conf.schema import RetentionConfig, TrendConfig
from qnnsweep.flows.cells.graph import (
    ProgressCallback,
    await_result,
    comparison_options,
    other_references,
    result_names,
)
from qnnsweep.flows.cells.resources import Resources
from qnnsweep.flows.forecasts.costs import work_label
from qnnsweep.flows.runs import results
from qnnsweep.flows.runs.files import CellEvidence, read_evidence
from qnnsweep.flows.runs.flow_state import run_flow
from qnnsweep.flows.session import begin, command, no_progress
from qnnsweep.tasks.compare import compare_task
from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import Comparison, RunFacts
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.stage import configure_task
from qnnsweep.tasks.storage.store import Store


def run_recompare(
    past: RunFacts,
    plan: Plan,
    overrides: Sequence[str],
    folders: Sequence[Path],
    on_progress: ProgressCallback = no_progress,
) -> results.SweepResult:
    """Compare every cell of a past run again, as a new run. `past`, `plan`: see `planned`."""
    line = command(overrides, folders, f"--run={past.run_id}", verb="recompare")
    make_importable(plan.folders)
    with begin(plan, line, on_progress) as session:
        resources = session.resources
        evidence = [read_evidence(past.run_id, cell.request, session.store) for cell in plan.cells]
        futures = [_submit(*inputs, resources, on_progress) for inputs in zip(plan.cells, evidence, strict=True)]
        cells = zip(plan.cells, evidence, futures, strict=True)
        compared = [_result(past.run_id, *cell) for cell in cells]
        for cell in compared if resources.others else ():  # the facts of the past run have only one toolchain
            cell.toolchain = resources.workers_of(cell.request).identity
        session.reused = sum(cell.capture is not None for cell in compared)
        session.result_names = result_names(future for future in futures if future is not None)
        return session.finish(compared, toolchain=past.toolchain)


@run_flow()
def recompare(
    artifacts: str, run_id: str | None, overrides: list[str], config_dirs: list[str] | None = None
) -> results.SweepResult:
    """Compare every cell of a past run again, as a new run. `overrides`: see `planned`."""
    folders = [Path(folder) for folder in config_dirs or ()]
    return run_recompare(*planned(Store.at(artifacts), run_id, overrides, folders), overrides, folders)


def planned(
    store: Store, run_id: str | None, overrides: Sequence[str], folders: Sequence[Path]
) -> tuple[RunFacts, Plan]:
    """Return the facts and the plan of a past run. `overrides` change the values that the run had.

    `folders`: the user's folders of configuration, whose modules can be imported. Raises RequestError for an unknown
    run, for an override of a key that changes captures, for code that these overrides do not name, and for a reference
    without stored values.
    """
    check_changeable(overrides)
    run = results.find_run(store, run_id)
    if run.command[1:2] == ("recompare",):
        raise RequestError(f"run {run.run_id} was itself a recompare; name the run that it compared: {run.command[2]}")
    cells = json.loads(run.cells)
    if not cells:
        problem = "only a run of qnnsweep run, of this version, can be compared again"
        raise RequestError(f"run {run.run_id} keeps no cells: {shlex.join(run.command[:3])}; {problem}")
    try:
        plan = load_again(cells, overrides, config_dirs=folders)
    except RequestError as error:
        raise error if error.key else RequestError(f"run {run.run_id}: {error.problem}") from None
    _check_references(run.run_id, plan, store)
    # Use the store's location on this machine: where the run was made, the store may have been in another folder. What
    # follows after a night is not repeated: a limit of retention could remove the very run that is compared again.
    quiet = replace(
        plan, cells=tuple(map(_without_cures, plan.cells)), retention=RetentionConfig(), trend=TrendConfig()
    )
    return run, replace(quiet, artifacts=store.location, cache_folder=None)


def _without_cures(cell: PlannedCell) -> PlannedCell:
    return replace(cell, request=replace(cell.request, measure=replace(cell.request.measure, cures=0)))


def _check_references(run_id: str, plan: Plan, store: Store) -> None:
    """Raise RequestError for a reference whose values were not stored when the run's cells were lowered."""
    requested = {name for cell in plan.cells for name in other_references(cell.request.measure)}
    for cell in plan.cells if requested else ():
        evidence = read_evidence(run_id, cell.request, store)
        methods = evidence.lowered.methods if evidence else ()
        stored = {reference.name for method in methods for reference in method.references} if evidence else requested
        for name in sorted(requested - stored):
            raise RequestError(
                f"measure.references={name}: run {run_id} did not store the values of that graph; "
                f"to store them, run qnnsweep run with measure.references=[{name}]"
            )


def _submit(
    cell: PlannedCell, evidence: CellEvidence | None, resources: Resources, on_progress: ProgressCallback
) -> PrefectFuture[Comparison] | None:
    if evidence is None:
        return None
    label = work_label("compare", cell.request)
    report = partial(on_progress, "compare", label)
    task = configure_task(
        compare_task,
        f"compare {label}",
        store=resources.store,
        on_change=lambda state: report("queued" if state == "running" else state),
    )
    options = comparison_options(cell.request)
    workers = resources.workers_of(cell.request).reporting(partial(report, "running"))
    return task.submit(evidence.lowered, evidence.capture, options, store=resources.store, workers=workers)


def _result(
    run_id: str, cell: PlannedCell, evidence: CellEvidence | None, future: PrefectFuture[Comparison] | None
) -> CellResult:
    if cell.impossible is not None:
        return CellResult(request=cell.request, impossible=cell.impossible)
    if evidence is None or future is None:
        return CellResult(
            request=cell.request,
            error=EvidenceError(f"run {run_id} has no capture of this cell; see the cell's row in that run"),
        )
    comparison, error = await_result(future)
    return CellResult(
        request=cell.request,
        exported=evidence.lowered.quantized.exported,
        quantized=evidence.lowered.quantized,
        lowered=evidence.lowered,
        capture=evidence.capture,
        stage="compare",
        comparison=comparison,
        error=error,
    )
