"""The stage try_cases: OperatorCases -> CaseOutcomes. Compiles and executes many cases in forks of one process."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from qnnsweep.conf.models import ModelConfig
from qnnsweep.conf.schema import MeasureConfig, SocConfig
from qnnsweep.tasks.atlas.case import (
    CaseOptions,
    OutputDiffers,
    calls_of,
    compare_case,
    compile_case,
    get_ready,
    stage_of,
)
from qnnsweep.tasks.atlas.states import described, of_error, of_failed_run, of_wrong_output
from qnnsweep.tasks.errors import EvidenceError, RequestError, ToolchainError
from qnnsweep.tasks.records import Blob, CaseOutcome, CaseOutcomes, DebugProgram, OperatorCase, OperatorCases
from qnnsweep.tasks.records.options import ComparisonOptions, LoweringOptions
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.workers.pool import SharedZygote, WorkerPool
from qnnsweep.tasks.toolchain.workers.supervisor import Subject

_MOST_LINES, _MOST_CHARACTERS = 4, 600
"""How much of an error's message is kept. The log has all of it."""
Value = TypeVar("Value")


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
    MachineFault if a process is killed from outside twice, and ToolchainError if no process can be prepared.
    """
    options = CaseOptions(
        model=model, soc=soc, lowering=lowering, measure=measure, comparison=comparison, toolchain=workers.identity
    )
    names = lowering.scheme.name, lowering.kind, soc.name
    tried = [case for case in cases.cases if case.skipped is None]
    done = {case.name: (described(case, "not_exported", case.skipped), None) for case in cases.cases if case.skipped}
    if tried:
        subject = (model.name, *names)
        with workers.zygote("cases", "edge", get_ready, tried[0], options, subject=subject) as ready:
            done |= {case.name: _Trial(ready, case, options, (case.name, *names), store).outcome() for case in tried}
    outcomes = [done[case.name] for case in cases.cases]
    logs = (log for _, log in outcomes if log is not None)
    return CaseOutcomes(outcomes=tuple(outcome for outcome, _ in outcomes), logs=tuple(logs))


def not_tried(case: OperatorCase) -> CaseOutcome:
    """Return the outcome of a case for which the limit of new cases leaves no room."""
    return described(case, "not_tried", "limits.new_cases is reached; a later run tries the case")


class _Trial:
    """The calls of one case, with their logs and their duration."""

    def __init__(
        self, ready: SharedZygote, case: OperatorCase, options: CaseOptions, subject: Subject, store: Store
    ) -> None:
        self._ready, self._case, self._options, self._subject, self._store = ready, case, options, subject, store
        self._logs: list[str] = []
        self._seconds = 0.0

    def outcome(self) -> tuple[CaseOutcome, Blob]:
        """Compile, execute and compare the case. Return its outcome and its log."""
        with self._store.scratch("case") as folder:
            outcome = self._outcome(folder)
            calls = calls_of(folder)
        blobs = [self._store.find(log) for log in self._logs]
        log = self._store.put_bytes(b"".join(self._store.read(blob) for blob in blobs if blob is not None))
        return replace(outcome, calls=calls, seconds=self._seconds, log=log.sha256), log

    def _outcome(self, folder: Path) -> CaseOutcome:
        case, options = self._case, self._options
        compiled = self._call("lower", compile_case, folder, case, options)
        if isinstance(compiled, _Failure) and compiled.is_killed and stage_of(folder) == "lower":
            without = replace(options, lowering=replace(options.lowering, dump_operators=False))
            again = self._call("lower", compile_case, folder, case, without)
            if not isinstance(again, _Failure):
                reason = f"the compilation with the debug program ended in {compiled.text}"
                debug = DebugProgram(program=None, unavailable=reason)
                methods = (replace(method, debug_programs=(debug,)) for method in again.methods)
                compiled = replace(again, methods=tuple(methods))
        if isinstance(compiled, _Failure):
            return of_error(case, stage_of(folder), compiled.text, is_killed=compiled.is_killed)
        compared = self._call("compare", compare_case, folder, case, compiled, options)
        if isinstance(compared, _Failure):
            if compared.cause == OutputDiffers.__name__:
                return of_wrong_output(case, compiled, compared.text)
            stage = stage_of(folder)
            return of_failed_run(case, compiled, stage, compared.text, is_killed=compared.is_killed)
        return compared

    def _call(self, stage: str, function: Callable[..., Value], *arguments: object) -> "Value | _Failure":
        start = time.monotonic()
        try:
            done = self._ready.call(stage, function, *arguments, subject=self._subject)
        except ToolchainError as error:
            self._logs += [error.log] if error.log else []
            return _Failure.of(error.cause, str(error).removeprefix(f"{stage} failed: "))
        except (RequestError, EvidenceError) as error:
            return _Failure.of(type(error).__name__, f"{type(error).__name__}: {error}")
        finally:
            self._seconds += time.monotonic() - start
        self._logs.append(done.log.sha256)
        return done.value


@dataclass(frozen=True, kw_only=True, slots=True)
class _Failure:
    """A call that failed: its cause (see `ToolchainError`), and the beginning of its error."""

    cause: str
    text: str

    is_killed: bool
    """Whether a signal or a limit ended the call, and no exception."""

    @classmethod
    def of(cls, cause: str, text: str) -> "_Failure":
        is_killed = cause in ("deadline", "memory limit", "exit") or cause in signal.Signals.__members__
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        kept = lines[: 1 if is_killed else _MOST_LINES]  # the last lines of the log follow the name of a signal
        return cls(cause=cause, text="; ".join(kept)[:_MOST_CHARACTERS], is_killed=is_killed)


try_cases_task = stage(try_cases, version=5)
