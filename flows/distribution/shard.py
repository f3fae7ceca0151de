"""A part of a sweep, on one worker of a work pool: what shares nothing with the other parts but the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from prefect import Flow, flow
from prefect.runtime import flow_run
from prefect.task_runners import ThreadPoolTaskRunner

from conf.load import SHARED_BY, load
from conf.plan import Plan
from flows.resources import prepare
from flows.run import RunStart, command
from flows.runs import results
from flows.runs.files import link_files
from flows.server import leases
from flows.sweep import CellResults, run_cells
from tasks.errors import RequestError
from tasks.results.outcome import CellResult
from tasks.results.rows import rows
from tasks.storage.occupancy import in_use
from tasks.storage.store import Store


@flow(
    name="shard",
    flow_run_name=lambda: " ".join(["shard", *_cut_by(flow_run.parameters["overrides"])]),
    task_runner=ThreadPoolTaskRunner(),  # type: ignore[arg-type]
    validate_parameters=False,
)
def shard(overrides: list[str], config_dirs: list[str], run_id: str, number: int) -> None:
    """Run the cells of the overrides, and keep their rows where `flows.distribution.spread` gathers all rows.

    A request that turns out to be wrong is its cells' failure: the other parts go on. Raises EnvironmentUnusable for
    a worker that lacks something; another one may have it.
    """
    folders = [Path(folder) for folder in config_dirs]
    plan = load(overrides, config_dirs=folders)
    run_start = RunStart.now(run_id)
    resources = prepare(plan, device_lock=leases.exclusive)
    with in_use(resources.store):
        try:
            found = run_cells(plan, resources, run_id)
        except RequestError as error:
            found = CellResults(cells=stopped(plan, error), reused=0, result_names={})
        run = run_start.ended(resources, found.reused, command(overrides, folders))
        link_files(found.cells, run_id, resources.store)
        contents = rows(run_id, found.cells, run.toolchain, resources.children.took)
        results.write_rows(run, contents, place(resources.store, run_id, number))


def _cut_by(overrides: list[str]) -> list[str]:
    """What tells a shard from the others of its run."""
    return [each for each in overrides if each.startswith(tuple(f"{axis}=" for axis in SHARED_BY))]


SHARD = cast("Flow[..., Any]", shard)


def parts_folder(run_id: str) -> str:
    """Where the parts of a run keep their rows until they are gathered."""
    return f"{results.run_folder(run_id)}/shards"


def place(store: Store, run_id: str, number: int) -> Store:
    """One part's place, with tables of its own."""
    return Store.at(f"{store.place}/{parts_folder(run_id)}/{number:04}")


def stopped(plan: Plan, error: BaseException) -> list[CellResult]:
    """Every cell of the plan, none of which was come to."""
    return [
        CellResult(request=cell.request, impossible=cell.impossible, error=None if cell.impossible else error)
        for cell in plan.cells
    ]
