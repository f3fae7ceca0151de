"""The caller's handle of a worker process. It starts and ends the process, and gets its answer and its log."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from typing import Any

from qnnsweep.tasks.toolchain.workers.memory import MemoryUsage, memory_usage
from qnnsweep.tasks.toolchain.workers.messages import (
    Ended,
    LogSoFar,
    Message,
    Raised,
    Receiver,
    Refused,
    Request,
    Returned,
    Started,
    Unreadable,
    send,
)
from qnnsweep.tasks.toolchain.workers.program import serve_program
from qnnsweep.tasks.toolchain.workers.server import ToolchainContext
from qnnsweep.tasks.toolchain.workers.worker import Call, serve_call, serve_zygote

_EXIT_TIMEOUT_S = 5.0
_NO_LOG = b"[qnnsweep: the log was lost, because its reader was killed or does not answer]\n"


class Process:
    """A process that runs one call, and its guard. No method waits longer than its timeout, whatever the call does."""

    _shares = False

    def __init__(self, answers: Connection, control: Connection) -> None:
        self._answers = Receiver(answers)
        self._control = Receiver(control)
        self._guard_pid: int | None = None
        self._log: bytes | None = None
        self._ended: Ended | None = None

    def next(self, timeout_s: float) -> Message | None:
        """Return the next message; None if there is none within `timeout_s`."""
        until = time.monotonic() + timeout_s
        while True:
            # In this order: whatever a process has sent can be received when its guard reports its end.
            self._receive_control()
            if (answer := self._answer()) is not None:
                return answer
            if self._control.at_end or self._ended is not None:
                return self._ended or Ended(self._exit_code(), _NO_LOG)
            if not self._wait(until):
                return None

    def memory_usage(self) -> MemoryUsage:
        return memory_usage(self._guard_pid, shares=self._shares)

    def log(self) -> bytes:
        """Return the log: until now, or until the end if the process has ended."""
        if self._ended is None and not self._control.connection.closed:
            self._log = None
            self._exchange(Request.LOG, lambda: self._log is not None)
        return _NO_LOG if self._log is None else self._log

    def close(self) -> None:
        """Kill the process and its descendants. A process that has sent its answer has nothing left to do or to log."""
        if self._control.connection.closed:
            return
        if not self._exchange(Request.END, lambda: self._ended is not None) and self._guard_pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._guard_pid, signal.SIGKILL)
        self._answers.close()
        self._control.close()

    def _exit_code(self) -> int | None:
        """Return the exit code of a guard that was killed; None if it is unknown."""
        return None

    def _answer(self) -> Message | None:
        try:
            answer = self._answers.receive()
        except Unreadable as error:
            return Raised("unreadable answer", str(error))
        if answer is None or isinstance(answer, Returned | Refused | Raised):
            return answer
        return Raised("unreadable answer", f"a {type(answer).__name__}")

    def _receive_control(self) -> None:
        while (message := self._control.receive()) is not None:
            match message:
                case Started(pid):
                    self._guard_pid = pid
                case LogSoFar(log):
                    self._log = log
                case Ended(log=log):
                    self._ended, self._log = message, log
                case _:
                    raise AssertionError(message)

    def _exchange(self, request: Request, is_answered: Any) -> bool:
        """Send a request to the guard, and wait for the answer. Return whether it came in time."""
        until = time.monotonic() + _EXIT_TIMEOUT_S
        with contextlib.suppress(OSError):  # the guard is dead
            send(self._control.connection, request)
        while True:
            self._receive_control()
            if is_answered():
                return True
            if self._control.at_end or not self._wait(until, answers=False):
                return False

    def _wait(self, until: float, *, answers: bool = True) -> bool:
        """Wait for a message. Return False if there is none until the monotonic time `until`."""
        remaining_s = until - time.monotonic()
        receivers = [self._control, *([self._answers] if answers else [])]
        connections = [receiver.connection for receiver in receivers if not receiver.at_end]
        return remaining_s > 0 and bool(wait(connections, remaining_s))


class Worker(Process):
    """A process that the fork server forks for one call."""

    def __init__(self, context: ToolchainContext, call: Call) -> None:
        answers, sending = context.Pipe(duplex=False)
        control, guards_end = context.Pipe(duplex=True)
        super().__init__(answers, control)
        self._start(context, serve_call, (guards_end, sending), call)

    def close(self) -> None:
        super().close()
        self._process.kill()
        self._process.join(_EXIT_TIMEOUT_S)

    def _start(self, context: ToolchainContext, target: Any, passed: tuple[Connection, ...], call: Call) -> None:
        self._process = context.Process(target=target, args=(*passed, call), daemon=False)
        context.start(self._process)
        self._guard_pid = self._process.pid
        for end in passed:
            end.close()

    def _exit_code(self) -> int | None:
        self._process.join(_EXIT_TIMEOUT_S)
        return self._process.exitcode


class ZygoteWorker(Worker):
    """A worker that does not end after its call. Every fork of it has the value that the call returned."""

    def __init__(self, context: ToolchainContext, call: Call) -> None:
        answers, sending = context.Pipe(duplex=False)
        control, guards_end = context.Pipe(duplex=True)
        self._requests, zygotes_end = context.Pipe(duplex=True)
        self._fork_lock = threading.Lock()
        Process.__init__(self, answers, control)
        self._start(context, serve_zygote, (guards_end, sending, zygotes_end), call)

    def fork(self, context: ToolchainContext, call: Call, timeout_s: float) -> "Fork":
        """Start a call; the zygote's value is its first argument. Raises OSError or EOFError if the zygote is dead."""
        answers, sending = context.Pipe(duplex=False)
        control, guards_end = context.Pipe(duplex=True)
        fork = Fork(answers, control)
        try:
            assert self._process.pid is not None, "started"
            with self._fork_lock, sending, guards_end:
                self._requests.send(call)
                for end in (sending, guards_end):
                    send_handle(self._requests, end.fileno(), self._process.pid)
            fork.wait_for_start(timeout_s)
        except (OSError, EOFError):
            fork.close()
            raise
        return fork

    def close(self) -> None:
        super().close()
        self._requests.close()


class Fork(Process):
    """A call in a fork of a zygote."""

    _shares = True

    def wait_for_start(self, timeout_s: float) -> None:
        """Wait until the fork's guard runs. Raises EOFError if it ended before, and TimeoutError."""
        until = time.monotonic() + timeout_s
        while self._guard_pid is None:
            if self._control.at_end:
                raise EOFError("the fork ended before it could run the call")
            if not self._wait(until, answers=False):
                raise TimeoutError("the zygote does not answer")
            self._receive_control()


def start_program(
    context: ToolchainContext, caller: socket.socket, stdout: Connection, stderr: Connection
) -> Callable[[], None]:
    """See `WorkerPool.program_starter`."""
    process = context.Process(target=serve_program, args=(caller, stdout, stderr), daemon=False)
    context.start(process)

    def end() -> None:
        process.kill()
        process.join(_EXIT_TIMEOUT_S)

    return end
