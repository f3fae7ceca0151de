"""The stage compare_cases: CompiledCases + MeasuredCases -> CaseOutcomes."""

from qnnsweep.tasks.atlas.states import of_skipped
from qnnsweep.tasks.atlas.trial import joined, trials
from qnnsweep.tasks.records import Blob, CaseOutcome, CaseOutcomes, CompiledCases, MeasuredCases
from qnnsweep.tasks.records.options import CaseOptions
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.workers.pool import WorkerPool


def compare_cases(
    compiled: CompiledCases, measured: MeasuredCases, options: CaseOptions, *, store: Store, workers: WorkerPool
) -> CaseOutcomes:
    """Compare every case that a device executed with the host and with the simulator. Raises as `try_cases`."""
    done: dict[str, tuple[CaseOutcome, Blob | None]] = {}
    found = {one.case: one for one in measured.cases}
    if tried := [one for one in compiled.cases if one.case.skipped is None]:
        with trials(tried[0].case, options, store, workers) as trial:
            done = {one.case.name: trial(one.case).measured(one, found.get(one.case.name)) for one in tried}
    return joined(done.get(one.case.name) or (of_skipped(one.case), None) for one in compiled.cases)


compare_cases_task = stage(compare_cases, version=3)
