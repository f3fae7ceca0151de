"""One sweep over many machines: cut into shards, each a flow run on a work pool, their rows gathered into one run.

Prefect schedules: it hands a shard to whichever worker is free, hears when one falls silent, and tries it again.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from prefect import Task, flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.futures import as_completed
from prefect.runtime import flow_run
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from conf import plan as plans
from conf.load import SHARED_BY, load, shards
from conf.plan import Plan
from flows.distribution import heartbeats
from flows.distribution.dask import runner as dask_runner
from flows.distribution.shard import SHARD, parts_folder, place, shard, stopped
from flows.graph import await_result
from flows.run import RunStart, command
from flows.runs import notifications, results
from flows.runs.artifacts import create_artifacts
from flows.sweep import watcher
from tasks.errors import EnvironmentUnusable, RequestError
from tasks.results.rows import rows
from tasks.storage.store import Store

POOL = "qnnsweep"
_POLL_S, _POLLS_PER_SECOND = 5.0, 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One shard: what to ask for to have its cells, and which they are."""

    number: int
    overrides: list[str]
    plan: Plan


class ShardCancelled(EnvironmentUnusable):
    """Somebody cancelled a shard: it is not tried again."""


@flow(
    name="spread",
    flow_run_name=lambda: shlex.join(["spread", *flow_run.parameters["overrides"]]),
    task_runner=ThreadPoolTaskRunner(),  # type: ignore[arg-type]
    validate_parameters=False,
)
def spread(
    overrides: list[str], config_dirs: list[str] | None = None, pool: str | None = POOL, dask: str | None = None
) -> results.SweepResult:
    """Run a sweep on many machines: on workers of a work pool, those that run the deployment `shard/<pool>` (see

    prefect.yaml), or on those of the Dask scheduler at the address `dask`. Every planned cell gets its row; one whose
    shard never came to its end says so. Raises RequestError, before any work, for a request that is wrong, and
    EnvironmentUnusable where there is no such deployment or scheduler.
    """
    folders = [Path(folder) for folder in config_dirs or ()]
    run_start = RunStart.now()
    plan, parts = cut(overrides, folders)
    store = Store.at(plan.artifacts, plan.cache_folder)
    store.try_out()
    notifiers = notifications.load_notifiers(plan.trend.notify)
    shared = {"config_dirs": list(map(str, folders)), "run_id": run_start.run_id}
    asked = [
        {"overrides": part.overrides, "number": part.number} | shared
        for part in parts
        if any(cell.impossible is None for cell in part.plan.cells)
    ]
    if dask is not None:
        errors = _errors(asked, on_dask, dask_runner(dask))
    else:
        heartbeats.mark_crashed_after(plan.limits.silence_s)
        more = {"deployment": _deployment(pool or POOL), "poll_s": max(_POLL_S, len(asked) / _POLLS_PER_SECOND)}
        tried = on_pool.with_options(retries=plan.limits.shard_attempts - 1)
        errors = _errors([each | more for each in asked], tried, ThreadPoolTaskRunner())
    kept = [place(store, run_start.run_id, part.number) for part in parts]
    past = [results.read_facts(run_start.run_id, each) for each in kept if results.is_complete(run_start.run_id, each)]
    run = run_start.facts(
        store,
        command(overrides, folders, f"--dask={dask}" if dask else f"--pool={pool}"),
        toolchain_calls=sum(each.toolchain_calls for each in past),
        reused=sum(each.reused for each in past),
        toolchain=past[0].toolchain if past else None,
    )
    for part, here in zip(parts, kept, strict=True):
        if not results.is_complete(run.run_id, here):
            lost = stopped(part.plan, errors.get(part.number) or _nothing_came(plan.artifacts))
            results.write_rows(run, rows(run.run_id, lost, None), here)
    result = results.join(run, kept, store, plan.trend)
    store.files.remove_all(parts_folder(run.run_id))
    create_artifacts(result, store)
    notifications.send(notifiers, result, store)
    return result


@task(name="shard", cache_policy=NO_CACHE, retry_condition_fn=lambda _task, _run, state: _may_be_tried_again(state))
def on_pool(
    deployment: str, overrides: list[str], config_dirs: list[str], run_id: str, number: int, poll_s: float
) -> None:
    """One shard on whichever worker takes it. Raises EnvironmentUnusable when its flow run does not end well."""
    parameters = {"overrides": overrides, "config_dirs": config_dirs, "run_id": run_id, "number": number}
    run = cast("FlowRun", run_deployment(deployment, parameters=parameters, poll_interval=poll_s))
    state = run.state
    assert state is not None, "its end was waited for"
    if not state.is_completed():
        kind = ShardCancelled if state.is_cancelled() else EnvironmentUnusable
        label = shlex.join(overrides)
        raise kind(f"its shard ({label}) ended {state.name}: {state.message or 'Prefect does not say why'}")


@task(name="shard", cache_policy=NO_CACHE)
def on_dask(overrides: list[str], config_dirs: list[str], run_id: str, number: int) -> None:
    """One shard in the process of a Dask worker. Where that dies, Dask gives it to another one."""
    shard(overrides, config_dirs, run_id, number)


def _errors(
    given: Sequence[Mapping[str, Any]], each: Task[..., None], on: AbstractContextManager[TaskRunner[Any]]
) -> dict[int, BaseException | None]:
    """Run every shard, and say why it did not end well, or None."""
    found: dict[int, BaseException | None] = {}
    with on as runner:
        futures = {runner.submit(each, dict(asked)): asked for asked in given}
        for asked in given:
            watcher.get()("shard", shlex.join(asked["overrides"]), "running")
        for future in as_completed(list(futures)):
            asked = futures[future]
            future.wait()
            died = EnvironmentUnusable("every Dask worker that had its shard died; the scheduler's log has more")
            error = await_result(future)[1] if future.state.is_final() else died
            found[asked["number"]] = error
            watcher.get()("shard", shlex.join(asked["overrides"]), "failed" if error else "done")
    return found


def cut(overrides: Sequence[str], folders: Sequence[Path]) -> tuple[Plan, list[Part]]:
    """The whole plan, and the same in parts. Raises RequestError."""
    loaded = [(each, load(each, config_dirs=folders)) for each in shards(overrides, config_dirs=folders)]
    whole = plans.plan(cell.request for _, part in loaded for cell in part.cells)
    if "://" not in whole.artifacts and not Path(whole.artifacts).is_absolute():
        raise RequestError(
            f"artifacts={whole.artifacts}: workers of a pool need one place for all: s3://BUCKET/FOLDER, or the "
            "absolute path of a folder that every host has"
        )
    # What is named twice is one shard: its cells are the same.
    once: dict[tuple[str, ...], tuple[list[str], Plan]] = {}
    for each, part in loaded:
        once.setdefault(part.cells[0].names[: len(SHARED_BY)], (each, part))
    return whole, [Part(number=number, overrides=each, plan=part) for number, (each, part) in enumerate(once.values())]


def _deployment(pool: str) -> str:
    name = f"{SHARD.name}/{pool}"
    with get_client(sync_client=True) as client:
        try:
            client.read_deployment_by_name(name)
        except ObjectNotFound:
            raise EnvironmentUnusable(
                f"--pool={pool}: this Prefect server has no deployment {name}; where prefect.yaml is, "
                "`prefect deploy --all` makes it"
            ) from None
    return name


def _may_be_tried_again(state: State) -> bool:
    return not isinstance(state.data, ShardCancelled)


def _nothing_came(artifacts: str) -> EnvironmentUnusable:
    return EnvironmentUnusable(
        f"its shard ended well and left nothing in {artifacts}: is that one place for all hosts?"
    )
