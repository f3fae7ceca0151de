"""A past run judged again: other tolerances on the captures it left, without a device and without compiling."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from prefect import flow
from prefect.futures import PrefectFuture
from prefect.runtime import flow_run
from prefect.task_runners import ThreadPoolTaskRunner

from conf.load import load
from conf.plan import Plan, PlannedCell
from flows.graph import await_result, judged_by, other_references, work_label
from flows.resources import Resources, prepare
from flows.run import new_run_id
from flows.runs import results
from flows.runs.files import CellEvidence, link_files, read_evidence
from flows.runs.retention import holdings
from flows.sweep import ended_by_sigterm, watcher
from tasks.compare import compare_task
from tasks.errors import EvidenceError, RequestError
from tasks.records import Comparison, RunFacts
from tasks.results.outcome import CellResult
from tasks.results.rows import rows
from tasks.stage import configure_task, is_reused, result_name
from tasks.storage.holdings import write_holdings
from tasks.storage.occupancy import in_use
from tasks.storage.store import Store

_ASKABLE = ("tolerance", "measure.replay", "measure.metrics", "measure.references", "limits")
"""What may differ from the run: nothing that a capture depends on."""


@flow(
    name="recompare",
    flow_run_name=lambda: shlex.join(["recompare", *flow_run.parameters["overrides"]]),
    task_runner=ThreadPoolTaskRunner(),  # type: ignore[arg-type]
    validate_parameters=False,
)
def recompare(artifacts: str, run_id: str | None, overrides: list[str]) -> results.SweepResult:
    """Compare every cell of a past run again, as a run of its own. `overrides` are of the tolerance and the replay.

    Raises RequestError when there is no such run or an override is of something that was measured or not stored.
    """
    store = Store.at(artifacts)
    with in_use(store):
        return _recompared(store, run_id, overrides)


def _recompared(store: Store, run_id: str | None, overrides: list[str]) -> results.SweepResult:
    run, plan = planned(store, run_id, overrides)
    started, began = datetime.now(UTC), time.monotonic()
    resources = prepare(plan)
    store = resources.store
    past = _kept(plan, run.run_id, store)
    with ended_by_sigterm():
        submissions = [(cell, evidence, _submitted(cell, evidence, resources)) for cell, evidence in past]
        done = [_result(run.run_id, *submission) for submission in submissions]
    new = new_run_id(started)
    facts = replace(
        run,
        run_id=new,
        started=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - began,
        command=("qnnsweep", "recompare", f"--run={run.run_id}", *overrides),
        toolchain_calls=0,
        reused=sum(cell.capture is not None for cell in done),
        tables=store.shown("tables"),
        report=store.shown(results.report_name(new)),
    )
    names = {
        name: is_reused(future.state) for *_, future in submissions if future and (name := result_name(future.state))
    }
    write_holdings(store, new, holdings(done, names, store))
    link_files(done, new, store)
    contents = rows(new, done, run.toolchain or resources.children.identity, verb="recompare")
    return results.write(facts, contents, store, trend=None)


def planned(store: Store, run_id: str | None, overrides: Sequence[str]) -> tuple[RunFacts, Plan]:
    """The past run, and its plan with these overrides in place of its own of the same keys."""
    for override in overrides:
        key = _key(override)
        if not any(key == asked or key.startswith(f"{asked}.") for asked in _ASKABLE):
            raise RequestError(f"{override}: a past run can be compared again with other {', '.join(_ASKABLE)} alone")
    run = results.find_run(store, run_id)
    if run.command[:2] != ("qnnsweep", "run"):
        raise RequestError(f"run {run.run_id} was itself a recompare; name the run it came from: {run.command[2]}")
    folders = [Path(each.removeprefix("--config-dir=")) for each in run.command[2:] if each.startswith("--config-dir=")]
    changed = {_key(override) for override in overrides}
    kept = [each for each in run.command[2:] if not each.startswith("--") and _key(each) not in changed]
    plan = load([*kept, *overrides], config_dirs=folders)
    _check_references(run.run_id, plan, store)
    # This machine's own folder for it, not that of the machine it ran on.
    return run, replace(plan, artifacts=store.place, cache_folder=None)


def _kept(plan: Plan, run_id: str, store: Store) -> Iterator[tuple[PlannedCell, CellEvidence | None]]:
    for cell in plan.cells:
        yield cell, read_evidence(run_id, cell.request, store)


def _check_references(run_id: str, plan: Plan, store: Store) -> None:
    """Refuse a reference whose values a lowering of the run did not keep."""
    asked = {name for cell in plan.cells for name in other_references(cell.request.measure)}
    for _, evidence in _kept(plan, run_id, store) if asked else ():
        stored = {each.name for each in evidence.lowered.references} if evidence else asked
        for name in sorted(asked - stored):
            raise RequestError(
                f"measure.references={name}: run {run_id} did not keep that graph's values; "
                f"qnnsweep run with measure.references=[{name}] does"
            )


def _submitted(
    cell: PlannedCell, evidence: CellEvidence | None, resources: Resources
) -> PrefectFuture[Comparison] | None:
    if evidence is None:
        return None
    request = cell.request
    label = work_label("compare", request)
    task = configure_task(
        compare_task, f"compare {label}", store=resources.store, on_change=partial(watcher.get(), "compare", label)
    )
    judged = judged_by(request)
    return task.submit(evidence.lowered, evidence.capture, *judged, store=resources.store, children=resources.children)


def _result(
    run_id: str, cell: PlannedCell, evidence: CellEvidence | None, future: PrefectFuture[Comparison] | None
) -> CellResult:
    if cell.impossible is not None:
        return CellResult(request=cell.request, impossible=cell.impossible)
    if evidence is None or future is None:
        return CellResult(
            request=cell.request, error=EvidenceError(f"run {run_id} brought no capture of this cell: see its own row")
        )
    comparison, error = await_result(future)
    lowered = evidence.lowered
    return CellResult(
        request=cell.request,
        exported=lowered.quantized.exported,
        quantized=lowered.quantized,
        lowered=lowered,
        capture=evidence.capture,
        stage="compare",
        comparison=comparison,
        error=error,
    )


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")
