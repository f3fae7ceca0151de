"""The flow of one sweep on many machines. It splits the sweep into shards, runs them, and joins their rows.

A shard is a flow run on a work pool. Prefect gives the flow run to any free worker. If the heartbeats of the
flow run stop, Prefect marks the flow run as crashed, and the shard is retried.
"""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.futures import as_completed
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from qnnsweep.conf import plan as plans
from qnnsweep.conf.load import SHARED_BY, load, shards
from qnnsweep.conf.plan import Plan
from qnnsweep.flows.cells.graph import ProgressCallback, await_result
from qnnsweep.flows.distribution import heartbeats
from qnnsweep.flows.distribution.dask import dask_task_runner
from qnnsweep.flows.distribution.shard import not_started, shard, shard_store, shards_folder
from qnnsweep.flows.runs import results
from qnnsweep.flows.runs.flow_state import run_flow
from qnnsweep.flows.session import begin, command, no_progress
from qnnsweep.tasks.errors import EnvironmentUnusable, RequestError
from qnnsweep.tasks.results.rows import rows
from qnnsweep.tasks.storage.manifest import join_manifests, read_manifest, write_manifest

POOL = "qnnsweep"
_POLL_S, _POLLS_PER_SECOND = 5.0, 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """A part of a sweep: the overrides that select its cells, and the plan of these overrides."""

    number: int
    overrides: list[str]
    plan: Plan

    @property
    def label(self) -> str:
        return shlex.join(self.overrides)


class ShardCancelled(EnvironmentUnusable):
    """The error for a shard that a user cancelled. Such a shard is not retried."""


def run_spread(
    overrides: Sequence[str],
    folders: Sequence[Path],
    pool: str | None = POOL,
    dask: str | None = None,
    on_progress: ProgressCallback = no_progress,
) -> results.SweepResult:
    """Run a sweep on many machines and join the rows of its shards into one run.

    The machines are either the workers of a work pool, which run the deployment `shard/<pool>` (see prefect.yaml), or
    the Dask workers of the scheduler at the address `dask`. Every planned cell gets a row. If the shard of a cell did
    not complete, the cell's row contains the error of the shard. Raises RequestError for a wrong request, before any
    work, and EnvironmentUnusable for an unknown deployment or scheduler.
    """
    plan, parts = split(overrides, folders)
    line = command(overrides, folders, f"--dask={dask}" if dask else f"--pool={pool}")
    with begin(plan, line, on_progress) as session:
        run_id, store = session.run_id, session.store
        shared = {"config_dirs": list(map(str, folders)), "run_id": run_id}
        possible = [part for part in parts if any(cell.impossible is None for cell in part.plan.cells)]
        if dask is not None:
            errors = _run_shards(possible, on_dask, shared, dask_task_runner(dask), on_progress)
        else:
            heartbeats.mark_crashed_after(plan.limits.silence_s)
            poll_s = max(_POLL_S, len(possible) / _POLLS_PER_SECOND)
            retried = on_pool.with_options(retries=plan.limits.shard_attempts - 1)
            shared |= {"deployment": _deployment(pool or POOL), "poll_s": poll_s}
            errors = _run_shards(possible, retried, shared, ThreadPoolTaskRunner(), on_progress)
        stores = {part.number: shard_store(store, run_id, part.number) for part in parts}
        completed = [
            results.read_facts(run_id, place) for place in stores.values() if results.is_complete(run_id, place)
        ]
        run = session.facts(
            toolchain_calls=sum(facts.toolchain_calls for facts in completed),
            reused=sum(facts.reused for facts in completed),
            toolchain=completed[0].toolchain if completed else None,
        )
        no_rows = EnvironmentUnusable(
            f"its shard completed and left no rows in {plan.artifacts}",
            remedy="check that this is the same shared location on every host",
        )
        for part in parts:
            if not results.is_complete(run_id, stores[part.number]):
                lost = not_started(part.plan, errors.get(part.number) or no_rows)
                results.write_rows(run, rows(run_id, lost, None), stores[part.number])
        write_manifest(store, run_id, join_manifests(read_manifest(place, run_id) for place in stores.values()))
        result = results.join(run, list(stores.values()), store, plan.trend)
        store.files.remove_all(shards_folder(run_id))
        return session.end(result)


@run_flow()
def spread(
    overrides: list[str], config_dirs: list[str] | None = None, pool: str | None = POOL, dask: str | None = None
) -> results.SweepResult:
    """Run a sweep on many machines; see `run_spread`."""
    return run_spread(overrides, [Path(folder) for folder in config_dirs or ()], pool, dask)


@task(
    name="shard",
    cache_policy=NO_CACHE,
    retry_condition_fn=lambda _task, _run, state: not isinstance(state.data, ShardCancelled),
)
def on_pool(
    deployment: str, overrides: list[str], config_dirs: list[str], run_id: str, number: int, poll_s: float
) -> None:
    """Run one shard on any worker of the pool. Raises EnvironmentUnusable unless the shard's flow run completes."""
    parameters = {"overrides": overrides, "config_dirs": config_dirs, "run_id": run_id, "number": number}
    run = cast("FlowRun", run_deployment(deployment, parameters=parameters, poll_interval=poll_s))
    state = run.state
    assert state is not None, "run_deployment waits for the end of the flow run"
    if not state.is_completed():
        error_type = ShardCancelled if state.is_cancelled() else EnvironmentUnusable
        reason = state.message or "Prefect gives no reason"
        raise error_type(f"its shard ({shlex.join(overrides)}) ended {state.name}: {reason}")


@task(name="shard", cache_policy=NO_CACHE)
def on_dask(overrides: list[str], config_dirs: list[str], run_id: str, number: int) -> None:
    """Run one shard in the process of a Dask worker. If the worker dies, Dask gives the shard to another worker."""
    shard(overrides, config_dirs, run_id, number)


def _run_shards(
    parts: Sequence[Shard],
    run_shard: Task[..., None],
    parameters: Mapping[str, Any],
    task_runner: AbstractContextManager[TaskRunner[Any]],
    update: ProgressCallback,
) -> dict[int, BaseException | None]:
    """Run every shard. Return a mapping from each shard's number to its error, or to None if the shard completed."""
    errors: dict[int, BaseException | None] = {}
    died = EnvironmentUnusable("every Dask worker that ran its shard died", remedy="see the log of the Dask scheduler")
    with task_runner as runner:
        futures = {
            runner.submit(run_shard, {"overrides": part.overrides, "number": part.number, **parameters}): part
            for part in parts
        }
        for part in parts:
            update("shard", part.label, "running")
        for future in as_completed(list(futures)):
            part = futures[future]
            future.wait()
            errors[part.number] = error = await_result(future)[1] if future.state.is_final() else died
            update("shard", part.label, "failed" if error else "done")
    return errors


def split(overrides: Sequence[str], folders: Sequence[Path]) -> tuple[Plan, list[Shard]]:
    """Return the plan of the whole sweep, and the sweep's shards. Raises RequestError for a wrong request."""
    loaded = [(words, load(words, config_dirs=folders)) for words in shards(overrides, config_dirs=folders)]
    whole = plans.plan(cell.request for _, part in loaded for cell in part.cells)
    if "://" not in whole.artifacts and not Path(whole.artifacts).is_absolute():
        raise RequestError(
            f"artifacts={whole.artifacts}: all workers of a pool need the same location: s3://BUCKET/FOLDER, or the "
            "absolute path of a folder that every host has"
        )
    # A shard that is requested twice runs once, because both requests select the same cells.
    unique: dict[tuple[str, ...], tuple[list[str], Plan]] = {}
    for words, part in loaded:
        unique.setdefault(part.cells[0].request.names[: len(SHARED_BY)], (words, part))
    numbered = enumerate(unique.values())
    return whole, [Shard(number=number, overrides=words, plan=part) for number, (words, part) in numbered]


def _deployment(pool: str) -> str:
    """Return the name of the pool's deployment. Raises EnvironmentUnusable if the server has no such deployment."""
    name = f"{shard.name}/{pool}"
    with get_client(sync_client=True) as client:
        try:
            client.read_deployment_by_name(name)
        except ObjectNotFound:
            raise EnvironmentUnusable(
                f"--pool={pool}: this Prefect server has no deployment {name}",
                remedy="run `prefect deploy --all` in the folder of prefect.yaml",
            ) from None
    return name
