"""The flow of one shard: the part of a sweep that runs on one worker. The shards of a sweep share only the store."""

from pathlib import Path

from qnnsweep.conf.load import SHARED_BY, load
from qnnsweep.conf.plan import Plan
from qnnsweep.flows.runs import results
from qnnsweep.flows.runs.flow_state import run_flow
from qnnsweep.flows.session import begin, command
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.results.outcome import CellResult
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
    with begin(plan, command(overrides, folders), part_of=run_id) as session:
        try:
            cells = session.measure(plan.cells)
        except RequestError as error:
            cells = not_started(plan, error)
        session.finish_part(cells, shard_store(session.store, run_id, number))


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
