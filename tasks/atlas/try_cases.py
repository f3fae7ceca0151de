"""The stage try_cases: OperatorCases -> CaseOutcomes. Compiles and executes many cases in forks of one process."""

from qnnsweep.tasks.atlas.states import of_skipped
from qnnsweep.tasks.atlas.trial import joined, trials
from qnnsweep.tasks.records import Blob, CaseOutcome, CaseOutcomes, OperatorCases
from qnnsweep.tasks.records.options import CaseOptions
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.workers.pool import WorkerPool


def try_cases(
    cases: OperatorCases, options: CaseOptions, _code: str, *, store: Store, workers: WorkerPool
) -> CaseOutcomes:
    """Compile, execute and compare every case. A case that fails, aborts or does not end has an outcome that says so.

    `_code`: the digest of the source of the collection's functions, for the cache key. Raises MachineFault if a process
    is killed from outside twice, and ToolchainError if no process can be prepared.
    """
    done: dict[str, tuple[CaseOutcome, Blob | None]] = {}
    if tried := [case for case in cases.cases if case.skipped is None]:
        with trials(tried[0], options, store, workers) as trial:
            done = {case.name: trial(case).outcome() for case in tried}
    return joined(done.get(case.name) or (of_skipped(case), None) for case in cases.cases)


try_cases_task = stage(try_cases, version=7)
