"""The flow of one shard: the part of a sweep that runs on one worker. The shards of a sweep share only the store."""

from pathlib import Path

from qnnsweep.conf.load import SHARED_BY, load
from qnnsweep.conf.plan import Plan
from qnnsweep.flows.resources import prepare
from qnnsweep.flows.run import CellResults, RunStart, command, run_cells
from qnnsweep.flows.runs import results
from qnnsweep.flows.runs.files import link_files
from qnnsweep.flows.runs.retention import manifest
from qnnsweep.flows.server import leases
from qnnsweep.flows.server.decorator import run_flow
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.results.rows import rows
from qnnsweep.tasks.storage import lock
from qnnsweep.tasks.storage.manifest import write_manifest
from qnnsweep.tasks.storage.store import Store


def _split_overrides(overrides: list[str]) -> list[str]:
    """Return the overrides in which a shard differs from the other shards of its run."""
    return [override for override in overrides if override.startswith(tuple(f"{axis}=" for axis in SHARED_BY))]


@run_flow(shown_overrides=_split_overrides)
def shard(overrides: list[str], config_dirs: list[str], run_id: str, number: int) -> None:
    """Run the cells of the overrides. Write their rows to the shard's own store, from which `spread` collects them.

    If a mistake in the request is found during the run, the cells of this shard fail, and the other shards continue.
    Raises EnvironmentUnusable if this worker lacks something, because a retry on another worker may succeed.
    """
    folders = [Path(folder) for folder in config_dirs]
    plan = load(overrides, config_dirs=folders)
    run_start = RunStart.now(run_id)
    resources = prepare(plan, device_lock=leases.exclusive)
    with lock.shared(resources.store):
        try:
            done = run_cells(plan, resources, run_id)
        except RequestError as error:
            done = CellResults(cells=not_started(plan, error), reused=0, result_names={})
        run = run_start.compiled_facts(resources, done.reused, command(overrides, folders))
        link_files(done.cells, run_id, resources.store)
        contents = rows(run_id, done.cells, run.toolchain, resources.costs)
        part = shard_store(resources.store, run_id, number)
        write_manifest(part, run_id, manifest(done.cells, done.result_names, resources.store))
        results.write_rows(run, contents, part)


def shards_folder(run_id: str) -> str:
    """Return the folder in which the shards of a run store their rows until the rows are joined."""
    return f"{results.run_folder(run_id)}/shards"


def shard_store(store: Store, run_id: str, number: int) -> Store:
    """Return the store of one shard. It contains only the tables of this shard."""
    return Store.at(f"{store.location}/{shards_folder(run_id)}/{number:04}", access=store.access)


def not_started(plan: Plan, error: BaseException) -> list[CellResult]:
    """Return the results of a plan of which no cell was started. Every possible cell has failed with `error`."""
    return [
        CellResult(request=cell.request, impossible=cell.impossible, error=None if cell.impossible else error)
        for cell in plan.cells
    ]
