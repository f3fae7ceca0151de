"""The supervision of one call in a worker process: its slot on the machine, its limits, its log, and its cost."""

import contextlib
import os
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Generic, TypeVar

from qnnsweep.conf.toolchains import DEFAULT_TOOLCHAIN
from qnnsweep.conf.units import GIB, KIB
from qnnsweep.tasks.errors import MachineFault, ToolchainError, shortage_in
from qnnsweep.tasks.records import Blob
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.workers.handle import Process, ProcessKilled
from qnnsweep.tasks.toolchain.workers.memory import MemoryLimit
from qnnsweep.tasks.toolchain.workers.messages import Ended, Message, Raised, Refused, Returned
from qnnsweep.tasks.toolchain.workers.scheduler import CostEstimate, Scheduler
from qnnsweep.tasks.toolchain.workers.server import ForkServer, fork_server
from qnnsweep.tasks.toolchain.workers.worker import Call

Result = TypeVar("Result")

_POLL_S = 0.1
_TAIL_LINES = 12
_TAIL_BYTES = 64 * KIB
_STACKS_S = 1.0
START_S = 300.0
"""How long a caller waits for the start of a worker. The fork server may still import the toolchain."""
_MOST_FRAMES = 12
ENDLESS = "no end"
"""The cause of the ToolchainError of a call that used all processor time it may use."""
_LEAST_FURTHER_S, _MOST_TIMES = 120.0, 10

Subject = tuple[str, ...]
"""What a call works on: the names of a model, a scheme, a backend and an SoC, as far as the call depends on them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallResult(Generic[Result]):
    """The value that a call returned, the call's log, and its duration."""

    value: Result
    log: Blob
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CallCost:
    """The cost of a call, even of a failed call. The next sweep uses this cost as an estimate."""

    stage: str
    subject: Subject
    toolchain: str = DEFAULT_TOOLCHAIN
    seconds: float
    peak_bytes: int
    """Peak of the resident memory. For a fork of a zygote, the pages that it shares with the zygote are not counted."""


@dataclass(frozen=True, slots=True)
class _LimitExceeded:
    cause: str
    text: str


@dataclass(kw_only=True, eq=False)
class Supervisor:
    """The part of a worker pool that the pool shares with its zygotes. Is thread-safe."""

    environment: dict[str, str]
    """The environment variables of the fork server."""
    store: Store
    scheduler: Scheduler
    deadline_s: float
    memory_bytes: int
    """The limit of the memory of a worker and its descendants."""
    estimates: Mapping[tuple[str, Subject], CostEstimate] = field(default_factory=dict)
    """The expected costs of calls, by stage and subject."""
    toolchain: str = DEFAULT_TOOLCHAIN
    """The name of the toolchain that the workers use."""
    modules: tuple[str, ...] = ()
    """Modules of calls that the fork server imports once, in addition to those of the toolchain."""
    calls: Counter[str] = field(default_factory=Counter, init=False)
    """The number of calls per stage. Zygotes are not counted."""
    costs: list[CallCost] = field(default_factory=list, init=False)
    """The costs of all calls, zygotes included, in the order in which the calls ended."""
    _guard: threading.Lock = field(default_factory=threading.Lock, init=False)

    def slot(self, stage: str, subject: Subject, *, urgent: bool) -> contextlib.AbstractContextManager[None]:
        """Wait for a core and the memory that the call is expected to need."""
        estimate = self.estimates.get((stage, subject), CostEstimate())
        capped = CostEstimate(seconds=estimate.seconds, peak_bytes=min(estimate.peak_bytes, self.memory_bytes))
        return self.scheduler.slot(capped, urgent=urgent)

    def scratch(self, stage: str) -> contextlib.AbstractContextManager[Path]:
        """Create the working directory of a call."""
        return self.store.scratch(stage)

    def count(self, stage: str) -> None:
        with self._guard:
            self.calls[stage] += 1

    def server(self, *, compiles: bool = True) -> ForkServer:
        """Return the fork server of a call. `compiles`: whether a worker may compile."""
        return fork_server(self.environment, self.modules, compiles=compiles)

    def start(self, server: ForkServer, call: Call, *, stays: bool = False) -> Process:
        """Start a worker from a fork server. Raises ProcessKilled, and MachineFault if the server does not answer."""
        try:
            return Process(server.started(), call, START_S, shares=False, stays=stays)
        except TimeoutError as error:
            stacks = f"{_stacks()}{server.stacks(_STACKS_S)}"
            raise MachineFault(f"{error} within {START_S:g} s\n{stacks}") from error

    def run(
        self,
        stage: str,
        subject: Subject,
        start: Callable[[Path], Process],
        *,
        log: bytes = b"",
        most_cpu_s: float = inf,
    ) -> CallResult[Any]:
        """Run a call in a process that `start` starts, with a scratch folder, and end the process.

        `log`: what precedes the log of the process. `most_cpu_s`: see `follow`. Raises ProcessKilled.
        """
        with self.scratch(stage) as scratch:
            return self.follow(start(scratch), stage, subject, time.monotonic(), log=log, most_cpu_s=most_cpu_s)

    def follow(
        self,
        process: Process,
        stage: str,
        subject: Subject,
        start: float,
        *,
        stays: bool = False,
        log: bytes = b"",
        most_cpu_s: float = inf,
    ) -> CallResult[Any]:
        """Wait until the process answers, ends or exceeds a limit. Then end the process, unless `stays` is true.

        `start`: the monotonic time at which the call began. `log`: what precedes the log of the process. `most_cpu_s`:
        how much processor time the call may use. Unlike its duration, this does not depend on what else runs.
        Raises ProcessKilled if the process is killed from outside.
        """
        peak, limit, from_s = 0, MemoryLimit(self.memory_bytes), most_cpu_s / (os.cpu_count() or 1)
        outcome: Message | _LimitExceeded | None = None
        tail = stacks = ""
        try:
            while outcome is None:
                outcome = process.next(_POLL_S)
                usage = process.memory_usage()
                peak = max(peak, usage.own_bytes)
                seconds = time.monotonic() - start
                if outcome is None and seconds > self.deadline_s:
                    outcome = _LimitExceeded("deadline", f"deadline of {self.deadline_s:g} s")
                    tail, stacks = _tail(process.log()), _stacks()
                    process.log(stacks=True)
                elif outcome is None and seconds > from_s and process.processor_s() > most_cpu_s:
                    outcome = _LimitExceeded(ENDLESS, f"no end after {most_cpu_s:g} s of processor time")
                    tail = _tail(process.log())
                elif outcome is None and limit.is_exceeded(usage):
                    outcome = _LimitExceeded("memory limit", f"memory limit of {self.memory_bytes / GIB:g} GiB")
                    tail = _tail(process.log())
        finally:
            if not stays:
                process.close()
            seconds = time.monotonic() - start
            with self._guard:
                self.costs.append(
                    CallCost(stage=stage, subject=subject, toolchain=self.toolchain, seconds=seconds, peak_bytes=peak)
                )
        assert outcome is not None, "the loop ends with an outcome"
        log += process.log()
        stored_log = self.store.put_bytes(log + stacks.encode())
        ended_by = None
        match outcome:
            case Returned(value):
                return CallResult(value=value, log=stored_log, seconds=seconds)
            case Refused(error):
                raise error
            case Raised(cause, text):
                why = f"{cause}: {text}"
            case _LimitExceeded(cause, text):
                why = f"{text}\n{tail}"
            case Ended(exit_code):
                cause, text, ended_by = _describe_end(exit_code)
                if ended_by is not None and (fault := shortage_in(_tail(log))) is not None:
                    raise fault
                why = f"{text}\n{_tail(log)}"
        message = f"{stage} failed: {why}".rstrip()
        raise ToolchainError(message, stage=stage, cause=cause, signal=ended_by, log=stored_log.sha256)


def again_if_killed(stage: str, attempt: Callable[[], Result]) -> Result:
    """Return what `attempt` returns. If a process is killed from outside, try once more; then raise MachineFault."""
    with contextlib.suppress(ProcessKilled):
        return attempt()
    try:
        return attempt()
    except ProcessKilled as error:
        raise MachineFault(f"{stage} failed twice: {error}") from error


def _describe_end(exit_code: int | None) -> tuple[str, str, signal.Signals | None]:
    if exit_code is None or exit_code >= 0:
        return "exit", f"exit code {exit_code} without an answer", None
    number = signal.Signals(-exit_code)
    return number.name, number.name, number


def _stacks() -> str:
    """Return the stack of this thread, which waits."""
    return "".join(["\n[qnnsweep: the process that waited was here]\n", *traceback.format_stack(limit=_MOST_FRAMES)])


def _tail(log: bytes) -> str:
    lines = log[-_TAIL_BYTES:].decode(errors="replace").splitlines()
    return "\n".join(line[:400] for line in lines[-_TAIL_LINES:])


def most_further_s(program_s: float, least_s: float = _LEAST_FURTHER_S) -> float:
    """Return how much processor time a compilation may use without which a cell still has a program.

    QNN's compiler can repeat one of its passes without end. `program_s`: the seconds that the toolchain has needed for
    the program so far.
    """
    return max(least_s, _MOST_TIMES * program_s)
