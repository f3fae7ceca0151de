"""The stage try_cases: OperatorCases -> CaseOutcomes. Compiles and executes many cases in forks of one process."""

from collections.abc import Sequence
from dataclasses import replace

from qnnsweep.conf.models import ModelConfig
from qnnsweep.conf.schema import MeasureConfig, SocConfig
from qnnsweep.tasks.atlas.case import CaseOptions, get_ready, try_case
from qnnsweep.tasks.atlas.states import described, of_error
from qnnsweep.tasks.errors import ToolchainError
from qnnsweep.tasks.records import Blob, CaseOutcome, CaseOutcomes, OperatorCase, OperatorCases
from qnnsweep.tasks.records.options import ComparisonOptions, LoweringOptions
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.workers.pool import CallResult, SharedZygote, WorkerPool


def try_cases(
    cases: OperatorCases,
    model: ModelConfig,
    soc: SocConfig,
    lowering: LoweringOptions,
    measure: MeasureConfig,
    comparison: ComparisonOptions,
    _code: str,
    *,
    store: Store,
    workers: WorkerPool,
) -> CaseOutcomes:
    """Compile, execute and compare every case. A case that fails, aborts or does not end has an outcome that says so.

    `model`: the collection. `_code`: the digest of the source of its functions, for the cache key. Raises
    ToolchainError only if the process that all forks come from is killed.
    """
    options = CaseOptions(
        model=model, soc=soc, lowering=lowering, measure=measure, comparison=comparison, toolchain=workers.identity
    )
    names = lowering.scheme.name, lowering.kind, soc.name
    first = next((case for case in cases.cases if case.skipped is None), None)
    if first is None:
        outcomes = [try_case(None, case, options) for case in cases.cases]
        return CaseOutcomes(outcomes=tuple(outcomes), logs=())
    with workers.zygote("cases", "edge", get_ready, first, options, subject=(model.name, *names)) as ready:
        done = [_tried(ready, case, options, (case.name, *names), store) for case in cases.cases]
    return CaseOutcomes(
        outcomes=tuple(outcome for outcome, _ in done), logs=tuple(log for _, log in done if log is not None)
    )


def not_tried(case: OperatorCase) -> CaseOutcome:
    """Return the outcome of a case for which the limit of new cases leaves no room."""
    return described(case, "not_tried", "limits.new_cases is reached; a later run tries the case")


def _tried(
    ready: SharedZygote, case: OperatorCase, options: CaseOptions, subject: Sequence[str], store: Store
) -> tuple[CaseOutcome, Blob | None]:
    """Return the outcome of a case, and its log."""
    try:
        result = _called(ready, case, options, subject)
    except ToolchainError as error:
        if error.cause == "killed":
            raise
        log = store.find(error.log) if error.log else None
        outcome = of_error(case, "lower", str(error).splitlines()[0], is_killed=True)
        return replace(outcome, log=error.log), log
    if case.skipped is not None:
        return result.value, None
    return replace(result.value, seconds=result.seconds, log=result.log.sha256), result.log


def _called(
    ready: SharedZygote, case: OperatorCase, options: CaseOptions, subject: Sequence[str]
) -> CallResult[CaseOutcome]:
    """Try a case. A case that reaches the deadline is tried once more, because a fork can hang by chance."""
    try:
        return ready.call("lower", try_case, case, options, subject=tuple(subject))
    except ToolchainError as error:
        if error.cause != "deadline":
            raise
    return ready.call("lower", try_case, case, options, subject=tuple(subject))


try_cases_task = stage(try_cases, version=2)
