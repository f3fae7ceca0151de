"""The stage compile_cases: OperatorCases -> CompiledCases, for other devices than the simulator of this machine."""

from qnnsweep.tasks.atlas.states import of_skipped
from qnnsweep.tasks.atlas.trial import trials
from qnnsweep.tasks.bundle import has_this_runner
from qnnsweep.tasks.records import CompiledCase, CompiledCases, OperatorCases
from qnnsweep.tasks.records.options import CaseOptions
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.workers.pool import WorkerPool


def compile_cases(
    cases: OperatorCases, options: CaseOptions, _code: str, with_onnxruntime: bool, *, store: Store, workers: WorkerPool
) -> CompiledCases:
    """Compile every case for other devices, and execute it in the simulator of this machine. Raises as `try_cases`.

    `with_onnxruntime`: whether a device executes the parts of programs; see `bundle`.
    """
    done: dict[str, CompiledCase] = {}
    if tried := [case for case in cases.cases if case.skipped is None]:
        with trials(tried[0], options, store, workers) as trial:
            done = {case.name: trial(case).compiled(with_onnxruntime=with_onnxruntime) for case in tried}
    skipped = (CompiledCase(case=case, outcome=of_skipped(case)) for case in cases.cases if case.name not in done)
    done |= {one.case.name: one for one in skipped}
    return CompiledCases(cases=tuple(done[case.name] for case in cases.cases))


def _have_this_runner(compiled: CompiledCases) -> bool:
    return all(one.bundle is None or has_this_runner(one.bundle) for one in compiled.cases)


compile_cases_task = stage(compile_cases, version=2, accepts=_have_this_runner)
