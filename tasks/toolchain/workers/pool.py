"""Toolchain calls in worker processes, so that an abort, an out-of-memory kill or a hang fails only one cell.

Workers are forked from a server. The server has imported torch and ExecuTorch, which saves seconds per call, and runs
with the environment that the dynamic linker needs. As long as nothing is compiled, a server that has imported only
torch is sufficient. Calls that begin with the same computation are forked from a zygote,
which is a worker that has done this computation already.
"""

import contextlib
import copy
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from qnnsweep.tasks.errors import EnvironmentUnusable, ToolchainError
from qnnsweep.tasks.records import Toolchain
from qnnsweep.tasks.toolchain.workers.handle import Worker, ZygoteWorker, start_program
from qnnsweep.tasks.toolchain.workers.supervisor import CallResult, Subject, Supervisor
from qnnsweep.tasks.toolchain.workers.worker import Call

Result = TypeVar("Result")

_LONGEST_TEMPORARY = 107 - len("/pymp-12345678/listener-12345678")
"""The most bytes that the temporary folder's path may have. The path of the fork server's socket in it may have 107."""


def check_temporary_folder() -> None:
    """Raise EnvironmentUnusable if the temporary folder's path is too long for the fork server's socket in it."""
    folder = tempfile.gettempdir()
    if len(os.fsencode(folder)) > _LONGEST_TEMPORARY:
        raise EnvironmentUnusable(
            f"TMPDIR={folder}: too long for the sockets below it",
            remedy=f"set TMPDIR to a folder whose path has at most {_LONGEST_TEMPORARY} bytes",
        )


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
    def toolchain(self) -> str:
        """The name of the toolchain that the workers use."""
        return self._supervisor.toolchain

    def of_toolchain(
        self, name: str, environment: dict[str, str], identity: Toolchain, *, is_prepared: bool
    ) -> "WorkerPool":
        """Return workers of another toolchain, which share the limits of this pool."""
        changed = replace(self._supervisor, environment=environment, toolchain=name, is_prepared=is_prepared)
        return WorkerPool(identity, changed)

    def warm_up(self) -> None:
        """Start the fork server before the first call needs it. Does not wait for its imports."""
        self._supervisor.start_server()

    def program_starter(
        self, environment: Mapping[str, str]
    ) -> Callable[[socket.socket, Connection, Connection], Callable[[], None]] | None:
        """Return a function that starts the supervisor of a Python program, which runs in a fork of the fork server.

        It is a `qnnsweep.tasks.devices.local.StartSupervisor`. It raises OSError or EOFError if the fork server
        is killed.
        Return None if the fork server has other variables than `environment`: it may have imported another ExecuTorch.
        """
        return self._start_program if environment == self._supervisor.environment else None

    def _start_program(self, caller: socket.socket, stdout: Connection, stderr: Connection) -> Callable[[], None]:
        context = self._supervisor.start_server(compiles=False)
        return start_program(context, caller, stdout, stderr)

    def call(
        self,
        stage: str,
        function: Callable[..., Result],
        *arguments: Any,
        subject: Subject = (),
        urgent: bool = False,
        compiles: bool = True,
    ) -> CallResult[Result]:
        """Run `function(*arguments)` in a worker whose working directory is a scratch folder of its own.

        `urgent`: whether the call starts before all calls that are not urgent.
        `compiles`: see `Supervisor.start_server`.
        Raises the function's own RequestError, EnvironmentUnusable or EvidenceError. If the function fails for
        any other reason, raises ToolchainError with the cause and the last log lines.
        """
        supervisor = self._supervisor
        with supervisor.slot(stage, subject, urgent=urgent), supervisor.scratch(stage) as scratch:
            self._on_start()
            supervisor.count(stage)
            context = supervisor.start_server(compiles=compiles)
            start = time.monotonic()
            worker = Worker(context, Call(scratch=scratch, function=function, arguments=arguments))
            return supervisor.follow(worker, stage, subject, start)

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
        self, stage: str, function: Callable[..., Result], *arguments: Any, subject: Subject = ()
    ) -> CallResult[Result]:
        """See `Zygote.call`."""
        return self.zygote.call(stage, function, *arguments, subject=subject, on_start=self.on_start)


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
        self._started: ZygoteWorker | Exception | None = None
        self._resources = contextlib.ExitStack()

    def call(
        self,
        stage: str,
        function: Callable[..., Result],
        *arguments: Any,
        subject: Subject = (),
        on_start: Callable[[], None] = lambda: None,
    ) -> CallResult[Result]:
        """Run `function(value, *arguments)` in a fork. `value` is the value that the zygote's function returned.

        The call's log begins with a copy of the zygote's log. Everything else is as in `WorkerPool.call`.
        """
        worker = self._worker(on_start)
        supervisor = self._supervisor
        # Urgent: the zygote holds memory until its last call has returned.
        with supervisor.slot(stage, subject, urgent=True), supervisor.scratch(stage) as scratch:
            on_start()
            supervisor.count(stage)
            start = time.monotonic()
            try:
                forked = Call(scratch=scratch, function=function, arguments=arguments)
                fork = worker.fork(supervisor.context, forked, supervisor.deadline_s)
            except (OSError, EOFError) as error:
                why = f"{stage} failed: the process from which it had to be forked was killed; run again"
                raise ToolchainError(why, stage=stage, cause="killed", log=None) from error
            return supervisor.follow(fork, stage, subject, start, log=self._log)

    def close(self) -> None:
        """End the worker and release its memory."""
        self._resources.close()

    def _worker(self, on_start: Callable[[], None]) -> ZygoteWorker:
        """Return the worker. The first call starts it; others wait. If the start fails, every call raises the error."""
        with self._starting:
            if self._started is None:
                try:
                    self._started = self._start(on_start)
                except Exception as error:  # noqa: BLE001 - every call raises the error, whatever it is
                    self._started = error
        if isinstance(self._started, Exception):
            raise self._started
        return self._started

    def _start(self, on_start: Callable[[], None]) -> ZygoteWorker:
        supervisor = self._supervisor
        with contextlib.ExitStack() as resources:
            with supervisor.slot(self._stage, self.subject, urgent=False):
                on_start()
                supervisor.start_server()
                scratch = resources.enter_context(supervisor.scratch(self._stage))
                start = time.monotonic()
                zygote = ZygoteWorker(supervisor.context, replace(self._call, scratch=scratch))
                worker = resources.enter_context(contextlib.closing(zygote))
                supervisor.follow(worker, self._stage, self.subject, start, stays=True)
                self._log = worker.log()
                self.seconds = time.monotonic() - start
                resources.enter_context(supervisor.scheduler.reserve(worker.memory_usage().own_bytes))
            self._resources = resources.pop_all()
        return worker
