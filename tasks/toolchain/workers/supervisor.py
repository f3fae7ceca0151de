"""The supervision of one call in a worker process: its slot on the machine, its limits, its log, and its cost."""

import contextlib
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from qnnsweep.conf.toolchains import DEFAULT_TOOLCHAIN
from qnnsweep.conf.units import GIB, KIB
from qnnsweep.tasks.errors import ToolchainError
from qnnsweep.tasks.records import Blob
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.workers.handle import Process
from qnnsweep.tasks.toolchain.workers.memory import MemoryLimit
from qnnsweep.tasks.toolchain.workers.messages import Ended, Message, Raised, Refused, Returned
from qnnsweep.tasks.toolchain.workers.scheduler import CostEstimate, Scheduler
from qnnsweep.tasks.toolchain.workers.server import ToolchainContext, start_server

Result = TypeVar("Result")

_POLL_S = 0.1
_TAIL_LINES = 12
_TAIL_BYTES = 64 * KIB

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
    is_prepared: bool = False
    """Whether `qnnsweep toolchain add` prepared the toolchain. Its workers then have a fork server of their own."""
    modules: tuple[str, ...] = ()
    """Modules of calls that the fork server imports once, in addition to those of the toolchain."""
    calls: Counter[str] = field(default_factory=Counter, init=False)
    """The number of calls per stage. Zygotes are not counted."""
    costs: list[CallCost] = field(default_factory=list, init=False)
    """The costs of all calls, zygotes included, in the order in which the calls ended."""
    context: ToolchainContext = field(init=False)
    """The context of calls that may compile."""
    _small_context: ToolchainContext = field(init=False)
    _guard: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        environment = self.environment if self.is_prepared else None
        self.context = ToolchainContext(environment)
        self._small_context = ToolchainContext(environment, compiles=False)

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

    def start_server(self, *, compiles: bool = True) -> ToolchainContext:
        """Start a fork server unless it runs already, and return its context.

        `compiles`: whether a worker may compile. If not, the server that compiles is used only if it has been started.
        """
        context = self.context if compiles or self.context.is_started else self._small_context
        with self._guard:
            start_server(context, self.environment, self.modules)
        return context

    def follow(
        self, process: Process, stage: str, subject: Subject, start: float, *, stays: bool = False, log: bytes = b""
    ) -> CallResult[Any]:
        """Wait until the process answers, ends or exceeds a limit. Then end the process, unless `stays` is true.

        `start`: the monotonic time at which the call began. `log`: what precedes the log of the process.
        """
        peak, limit = 0, MemoryLimit(self.memory_bytes)
        outcome: Message | _LimitExceeded | None = None
        try:
            while outcome is None:
                outcome = process.next(_POLL_S)
                usage = process.memory_usage()
                peak = max(peak, usage.own_bytes)
                if outcome is None and time.monotonic() - start > self.deadline_s:
                    outcome = _LimitExceeded("deadline", f"deadline of {self.deadline_s:g} s")
                elif outcome is None and limit.is_exceeded(usage):
                    outcome = _LimitExceeded("memory limit", f"memory limit of {self.memory_bytes / GIB:g} GiB")
        finally:
            if not stays:
                process.close()
        seconds = time.monotonic() - start
        self.costs.append(
            CallCost(stage=stage, subject=subject, toolchain=self.toolchain, seconds=seconds, peak_bytes=peak)
        )
        log += process.log()
        stored_log = self.store.put_bytes(log)
        ended_by = None
        match outcome:
            case Returned(value):
                return CallResult(value=value, log=stored_log, seconds=seconds)
            case Refused(error):
                raise error
            case Raised(cause, text):
                why = f"{cause}: {text}"
            case Ended(exit_code):
                cause, text, ended_by = _describe_end(exit_code)
                why = f"{text}\n{_tail(log)}"
            case _LimitExceeded(cause, text):
                why = f"{text}\n{_tail(log)}"
        message = f"{stage} failed: {why}".rstrip()
        raise ToolchainError(message, stage=stage, cause=cause, signal=ended_by, log=stored_log.sha256)


def _describe_end(exit_code: int | None) -> tuple[str, str, signal.Signals | None]:
    if exit_code is None or exit_code >= 0:
        return "exit", f"exit code {exit_code} without an answer", None
    number = signal.Signals(-exit_code)
    hint = " (often the kernel's out-of-memory killer)" if number is signal.SIGKILL else ""
    return number.name, f"{number.name}{hint}", number


def _tail(log: bytes) -> str:
    lines = log[-_TAIL_BYTES:].decode(errors="replace").splitlines()
    return "\n".join(line[:400] for line in lines[-_TAIL_LINES:])
