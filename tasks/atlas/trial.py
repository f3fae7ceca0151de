"""The calls of one operator case in forks of a prepared process, with their logs and their duration."""

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from qnnsweep.tasks.atlas.case import (
    calls_of,
    compare_case,
    compare_device,
    compile_case,
    get_ready,
    simulate_case,
    stage_of,
)
from qnnsweep.tasks.atlas.in_process import OutputDiffers, control_case
from qnnsweep.tasks.atlas.states import of_error, of_failed_run, of_wrong_output
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.errors import EvidenceError, RequestError, ToolchainError
from qnnsweep.tasks.records import (
    Blob,
    Capture,
    CaseOutcome,
    CaseOutcomes,
    CompiledCase,
    DebugProgram,
    LoweredProgram,
    MeasuredCase,
    OperatorCase,
)
from qnnsweep.tasks.records.atlas import LACKS_KERNEL, NOT_SIMULATED
from qnnsweep.tasks.records.options import CaseOptions
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.workers.pool import SharedZygote, WorkerPool
from qnnsweep.tasks.toolchain.workers.supervisor import CallResult

_MOST_LINES, _MOST_CHARACTERS = 4, 600
"""How much of an error's message is kept. The log has all of it."""
Value = TypeVar("Value")


@contextmanager
def trials(
    first: OperatorCase, options: CaseOptions, store: Store, workers: WorkerPool
) -> Iterator[Callable[[OperatorCase], "Trial"]]:
    """Yield a function that returns the trial of a case. `first`: a case, with which their process gets ready.

    Raises MachineFault if a process is killed from outside twice, and ToolchainError if no process can be prepared.
    """
    names = options.lowering.scheme.name, options.lowering.kind, options.soc.name
    with workers.zygote("cases", "edge", get_ready, first, options, subject=(options.model.name, *names)) as ready:
        yield lambda case: Trial(ready, workers, case, options, (case.name, *names), store)


class Trial:
    """The calls of one case. A call that fails, aborts or does not end is part of the case's outcome."""

    def __init__(
        self,
        ready: SharedZygote,
        workers: WorkerPool,
        case: OperatorCase,
        options: CaseOptions,
        subject: tuple[str, ...],
        store: Store,
    ) -> None:
        self._workers = workers
        self._ready, self._case, self._options, self._subject, self._store = ready, case, options, subject, store
        self._logs: list[str] = []
        self._seconds = 0.0

    def outcome(self) -> tuple[CaseOutcome, Blob]:
        """Compile, execute and compare the case on this machine. Return its outcome and its log."""
        with self._store.scratch("case") as folder:
            compiled = self._compiled(folder, None)
            outcome = compiled if isinstance(compiled, CaseOutcome) else self._compared(folder, compiled)
            calls = calls_of(folder)
        return self._with_log(replace(outcome, calls=calls))

    def compiled(self, *, with_onnxruntime: bool) -> CompiledCase:
        """Compile the case for another device, and execute it in the simulator of this machine."""
        with self._store.scratch("case") as folder:
            compiled = self._compiled(folder, self._store)
            part = CompiledCase(case=self._case, calls=calls_of(folder))
            if isinstance(compiled, CaseOutcome):
                part = replace(part, outcome=compiled)
            else:
                part = self._simulated(folder, part, compiled, with_onnxruntime)
        return replace(part, seconds=self._seconds, logs=tuple(self._blobs()))

    def _simulated(
        self, folder: Path, part: CompiledCase, compiled: LoweredProgram, with_onnxruntime: bool
    ) -> CompiledCase:
        try:
            packed = bundle(compiled, self._options.measure, with_onnxruntime, store=self._store)
        except EvidenceError as error:  # no device with ONNX Runtime executes the program
            return replace(part, outcome=of_failed_run(self._case, compiled, "bundle", str(error), is_killed=False))
        part = replace(part, lowered=compiled, bundle=packed)
        simulated = self._call("execute", simulate_case, folder, packed, self._store)
        if isinstance(simulated, _Failure):
            why = NOT_SIMULATED if LACKS_KERNEL in simulated.text else "the simulator failed"
            return replace(part, not_simulated=f"{why}: {simulated.text}")
        return replace(part, simulated=simulated)

    def measured(self, compiled: CompiledCase, measured: MeasuredCase | None) -> tuple[CaseOutcome, Blob]:
        """Compare what a device returned. Return the outcome and the log. `measured`: None without a program."""
        self._seconds, self._logs = compiled.seconds, [log.sha256 for log in compiled.logs]
        return self._with_log(replace(self._on_device(compiled, measured), calls=compiled.calls))

    def _on_device(self, compiled: CompiledCase, measured: MeasuredCase | None) -> CaseOutcome:
        if compiled.outcome is not None:
            return compiled.outcome
        assert compiled.lowered is not None, "the case has a program"
        assert measured is not None, "a program was executed"
        if measured.capture is not None:
            return self._compared_on_device(compiled, compiled.lowered, measured.capture)
        self._logs += [measured.log.sha256] if measured.log else []
        outcome = self._of_failure(compiled.lowered, measured)
        if compiled.simulated is None:
            return replace(outcome, simulator_why=compiled.not_simulated)
        return replace(outcome, executed_on=measured.device, simulator_why="the simulator executes the case")

    def _compiled(self, folder: Path, store: Store | None) -> LoweredProgram | CaseOutcome:
        """Return the compiled case, or its outcome if there is no program. `store`: see `compile_case`."""
        case, options = self._case, self._options
        compiled = self._call("lower", compile_case, folder, case, options, store)
        if isinstance(compiled, _Failure) and compiled.is_killed and stage_of(folder) == "lower":
            without = replace(options, lowering=replace(options.lowering, dump_operators=False))
            again = self._call("lower", compile_case, folder, case, without, store)
            if not isinstance(again, _Failure):
                reason = f"the compilation with the debug program ended in {compiled.text}"
                debug = DebugProgram(program=None, unavailable=reason)
                methods = (replace(method, debug_programs=(debug,)) for method in again.methods)
                compiled = replace(again, methods=tuple(methods))
        if isinstance(compiled, _Failure):
            return of_error(case, stage_of(folder), compiled.text, is_killed=compiled.is_killed)
        return compiled

    def _compared(self, folder: Path, compiled: LoweredProgram) -> CaseOutcome:
        """Return the outcome of a case on this machine. ONNX Runtime executes it before, if it can."""
        control: Capture | _Failure | None = None
        if self._options.second_runtime:
            call = partial(self._workers.call, compiles=False, urgent=True)  # the prepared process holds memory
            control = self._call("execute", control_case, folder, compiled, self._options.measure, call=call)
        capture = None if isinstance(control, _Failure) else control
        compared = self._call("compare", compare_case, folder, self._case, compiled, self._options, capture)
        if isinstance(compared, _Failure):
            return self._failed(folder, compiled, compared)
        if isinstance(control, _Failure):
            note = f"ONNX Runtime does not execute the case: {control.text}"
            return replace(compared, why="; ".join(filter(None, (compared.why, note))))
        return compared

    def _compared_on_device(self, compiled: CompiledCase, lowered: LoweredProgram, capture: Capture) -> CaseOutcome:
        with self._store.scratch("case") as folder:
            compared = self._call("compare", compare_device, folder, compiled, capture, self._options, self._store)
            if not isinstance(compared, _Failure):
                return compared
            if compared.cause == EvidenceError.__name__:  # of the store, or of the device's reply
                raise EvidenceError(f"the case {self._case.name}: {compared.text}")
            outcome = self._failed(folder, lowered, compared)
        return replace(outcome, executed_on=capture.device, simulator_why="the comparison failed")

    def _of_failure(self, lowered: LoweredProgram, measured: MeasuredCase) -> CaseOutcome:
        """Return the outcome of a case that failed on the device."""
        text = "; ".join((measured.failure or "").splitlines()[:_MOST_LINES])[:_MOST_CHARACTERS]
        if measured.ending == "wrong output":
            return of_wrong_output(self._case, lowered, text)
        return of_failed_run(self._case, lowered, "execute", text, is_killed=measured.ending == "killed")

    def _failed(self, folder: Path, compiled: LoweredProgram, failure: "_Failure") -> CaseOutcome:
        """Return the outcome of a case whose execution or comparison failed."""
        if failure.cause == OutputDiffers.__name__:
            return of_wrong_output(self._case, compiled, failure.text)
        return of_failed_run(self._case, compiled, stage_of(folder), failure.text, is_killed=failure.is_killed)

    def _with_log(self, outcome: CaseOutcome) -> tuple[CaseOutcome, Blob]:
        log = self._store.put_bytes(b"".join(map(self._store.read, self._blobs())))
        return replace(outcome, seconds=self._seconds, log=log.sha256), log

    def _blobs(self) -> list[Blob]:
        """Return the logs of the calls."""
        return [blob for log in self._logs if (blob := self._store.find(log)) is not None]

    def _call(
        self,
        stage: str,
        function: Callable[..., Value],
        *arguments: object,
        call: Callable[..., CallResult[Any]] | None = None,
    ) -> "Value | _Failure":
        """Call a function, by default in a fork of the prepared process. Return its value or its failure."""
        start = time.monotonic()
        try:
            done = (call or self._ready.call)(stage, function, *arguments, subject=self._subject)
        except ToolchainError as error:
            self._logs += [error.log] if error.log else []
            return _Failure.of(error.cause, str(error).removeprefix(f"{stage} failed: "))
        except (RequestError, EvidenceError) as error:
            return _Failure.of(type(error).__name__, f"{type(error).__name__}: {error}")
        finally:
            self._seconds += time.monotonic() - start
        self._logs.append(done.log.sha256)
        return done.value


def joined(done: Iterable[tuple[CaseOutcome, Blob | None]]) -> CaseOutcomes:
    """Return the outcomes of cases with their logs, in this order."""
    outcomes, logs = zip(*done, strict=True)
    return CaseOutcomes(outcomes=outcomes, logs=tuple(log for log in logs if log is not None))


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
