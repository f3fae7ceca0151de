"""The stage list_cases: ModelConfig of a collection -> OperatorCases."""

from qnnsweep.conf.models import ModelConfig
from qnnsweep.tasks.atlas.collection import collected
from qnnsweep.tasks.records import OperatorCases
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.workers.pool import WorkerPool


def list_cases(model: ModelConfig, _code: str, *, store: Store, workers: WorkerPool) -> OperatorCases:
    """Return the cases of a collection. `_code`: the digest of the source of its functions, for the cache key.

    Raises RequestError if the collection's source fails, and ToolchainError if the worker dies.
    """
    del store  # every stage gets it
    return workers.call("export", collected, model, subject=(model.name,)).value


list_cases_task = stage(list_cases, version=1)
