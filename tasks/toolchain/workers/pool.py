"""Toolchain calls in worker processes, so that an abort, an out-of-memory kill or a hang fails only one cell.

Workers are forked from a server. The server has imported torch and ExecuTorch, which saves seconds per call, and runs
with the environment that the dynamic linker needs. As long as nothing is compiled, a server that has imported only
torch is sufficient. Calls that begin with the same computation are forked from a zygote,
which is a worker that has done this computation already.
"""

import contextlib
import copy
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from math import inf
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from qnnsweep.tasks.records import Toolchain
from qnnsweep.tasks.toolchain.workers.handle import Process, ProcessKilled
from qnnsweep.tasks.toolchain.workers.supervisor import START_S, CallResult, Subject, Supervisor, again_if_killed
from qnnsweep.tasks.toolchain.workers.worker import Call

Result = TypeVar("Result")


class WorkerPool:
    """A thread-safe runner of module-level functions in workers. The scheduler limits how many workers run at once."""

    def __init__(self, identity: Toolchain, supervisor: Supervisor) -> None:
        self.identity = identity
        self.calls, self.costs = supervisor.calls, supervisor.costs
        self._supervisor = supervisor
        self._guard = threading.Lock()
        self._zygotes: dict[str, Zygote] = {}
        self._on_start: Callable[[], None] = lambda: None

    def reporting(self, on_start: Callable[[], None]) -> "WorkerPool":
        """Return this pool with another callback. `on_start` is called when a call has got its core."""
        pool = copy.copy(self)
        pool._on_start = on_start
        return pool

    @property
    def parallel(self) -> int:
        """The most calls that run at once."""
        return self._supervisor.scheduler.parallel

    @property
    def toolchain(self) -> str:
        """The name of the toolchain that the workers use."""
        return self._supervisor.toolchain

    def of_toolchain(self, name: str, environment: dict[str, str], identity: Toolchain) -> "WorkerPool":
        """Return workers of another toolchain, which share the limits of this pool."""
        changed = replace(self._supervisor, environment=environment, toolchain=name)
        return WorkerPool(identity, changed)

    def warm_up(self) -> None:
        """Start the fork server before the first call needs it. Does not wait for its imports."""
        self._supervisor.server().started()

    def program_starter(
        self, environment: Mapping[str, str]
    ) -> Callable[[socket.socket, Connection, Connection], Callable[[], None]] | None:
        """Return a function that starts the supervisor of a Python program, which runs in a fork of the fork server.

        It is a `qnnsweep.tasks.devices.local.StartSupervisor`, which raises OSError if the fork server was killed.
        Return None if the fork server has other variables than `environment`: it may have imported another ExecuTorch.
        """
        return self._start_program if environment == self._supervisor.environment else None

    def _start_program(self, caller: socket.socket, stdout: Connection, stderr: Connection) -> Callable[[], None]:
        self._supervisor.server(compiles=False).started().fork(b"p", caller, stdout, stderr)
        return lambda: None  # the supervisor ends by itself when its caller has ended

    def call(
        self,
        stage: str,
        function: Callable[..., Result],
        *arguments: Any,
        subject: Subject = (),
        urgent: bool = False,
        compiles: bool = True,
        most_cpu_s: float = inf,
    ) -> CallResult[Result]:
        """Run `function(*arguments)` in a worker whose working directory is a scratch folder of its own.

        `urgent`: whether the call starts before all calls that are not urgent.
        `compiles`: see `Supervisor.server`. `most_cpu_s`: see `Supervisor.follow`.
        Raises the function's own RequestError, EnvironmentUnusable or EvidenceError. If the function fails for
        any other reason, raises ToolchainError with the cause and the last log lines. Raises MachineFault if memory is
        short, or if the worker is killed from outside and killed again.
        """
        supervisor = self._supervisor
        with supervisor.slot(stage, subject, urgent=urgent):
            self._on_start()
            supervisor.count(stage)
            server = supervisor.server(compiles=compiles)

            def start(scratch: Path) -> Process:
                return supervisor.start(server, Call(scratch=scratch, function=function, arguments=arguments))

            return again_if_killed(stage, lambda: supervisor.run(stage, subject, start, most_cpu_s=most_cpu_s))

    @contextlib.contextmanager
    def zygote(
        self, key: str, stage: str, function: Callable[..., Any], *arguments: Any, subject: Subject = ()
    ) -> Generator["SharedZygote"]:
        """Yield a zygote, whose process runs `function(*arguments)` once. Calls are then forked from this process.

        All users of one `key` share the process. It starts at the first call, and ends when the last user leaves.
        """
        with self._guard:
            call = Call(scratch=Path(), function=function, arguments=arguments)
            zygote = self._zygotes.setdefault(key, Zygote(self._supervisor, stage, subject, call))
            zygote.users += 1
        try:
            yield SharedZygote(zygote, self._on_start)
        finally:
            with self._guard:
                zygote.users -= 1
                if is_last := zygote.users == 0:
                    del self._zygotes[key]
            if is_last:
                zygote.close()


@dataclass(frozen=True, slots=True)
class SharedZygote:
    """A zygote, and the callback of the pool through which it is used."""

    zygote: "Zygote"
    on_start: Callable[[], None]

    def call(
        self,
        stage: str,
        function: Callable[..., Result],
        *arguments: Any,
        subject: Subject = (),
        most_cpu_s: float = inf,
    ) -> CallResult[Result]:
        """See `Zygote.call`."""
        given = stage, function, *arguments
        return self.zygote.call(*given, subject=subject, on_start=self.on_start, most_cpu_s=most_cpu_s)


class Zygote:
    """A worker that runs a function and then does not end. Calls run in forks of it, and use the function's value."""

    def __init__(self, supervisor: Supervisor, stage: str, subject: Subject, call: Call) -> None:
        self.subject = subject
        self.users = 0
        self.seconds = 0.0
        """The duration of the zygote's function."""
        self._supervisor = supervisor
        self._stage = stage
        self._call = call
        self._log = b""
        self._starting = threading.Lock()
        self._started: Process | Exception | None = None
        self._resources = contextlib.ExitStack()

    def call(
        self,
        stage: str,
        function: Callable[..., Result],
        *arguments: Any,
        subject: Subject = (),
        on_start: Callable[[], None] = lambda: None,
        most_cpu_s: float = inf,
    ) -> CallResult[Result]:
        """Run `function(value, *arguments)` in a fork. `value` is the value that the zygote's function returned.

        The call's log begins with a copy of the zygote's log. Everything else is as in `WorkerPool.call`.
        """
        supervisor = self._supervisor

        def attempt() -> CallResult[Result]:
            worker = self._worker(on_start)
            # Urgent: the zygote holds memory until its last call has returned.
            with supervisor.slot(stage, subject, urgent=True):
                on_start()
                supervisor.count(stage)

                def start(scratch: Path) -> Process:
                    return self._fork(worker, Call(scratch=scratch, function=function, arguments=arguments))

                return supervisor.run(stage, subject, start, log=self._log, most_cpu_s=most_cpu_s)

        return again_if_killed(stage, attempt)

    def close(self) -> None:
        """End the worker and release its memory."""
        self._resources.close()

    def _worker(self, on_start: Callable[[], None]) -> Process:
        """Return the worker. The first call starts it; others wait. If the start fails, every call raises the error."""
        with self._starting:
            if self._started is None:
                try:
                    self._started = again_if_killed(self._stage, lambda: self._start(on_start))
                except Exception as error:  # noqa: BLE001 - every call raises the error, whatever it is
                    self._started = error
        if isinstance(self._started, Exception):
            raise self._started
        return self._started

    def _forget(self, worker: Process) -> None:
        """Release a worker that was killed, so that the next call starts another one."""
        with self._starting:
            if self._started is worker:
                self._started = None
                self._resources.close()

    def _fork(self, worker: Process, call: Call) -> Process:
        """Start a call in a fork of the worker. A worker that was killed is forgotten. Raises ProcessKilled."""
        assert worker.forks is not None, "a zygote"
        try:
            return Process(worker.forks, call, START_S, shares=True)
        except (TimeoutError, ProcessKilled) as error:
            self._forget(worker)
            raise ProcessKilled("the process that forks the worker was killed or does not answer") from error

    def _start(self, on_start: Callable[[], None]) -> Process:
        supervisor = self._supervisor
        with contextlib.ExitStack() as resources:
            with supervisor.slot(self._stage, self.subject, urgent=False):
                on_start()
                scratch = resources.enter_context(supervisor.scratch(self._stage))
                worker = supervisor.start(supervisor.server(), replace(self._call, scratch=scratch), stays=True)
                resources.enter_context(contextlib.closing(worker))
                start = time.monotonic()
                supervisor.follow(worker, self._stage, self.subject, start, stays=True)
                self._log = worker.log()
                self.seconds = time.monotonic() - start
                resources.enter_context(supervisor.scheduler.reserve(worker.memory_usage().own_bytes))
            self._resources = resources.pop_all()
        return worker
