"""The caller's handle of a worker process. It starts and ends the process, and gets its answer and its log."""

import contextlib
import os
import signal
import socket
import sys
import time
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Any

from qnnsweep.tasks.process_tree import ENDED_BY_OTHERS
from qnnsweep.tasks.toolchain.workers.memory import MemoryUsage, memory_usage, processor_s
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
    dumps,
    send,
)
from qnnsweep.tasks.toolchain.workers.server import ForkRequests
from qnnsweep.tasks.toolchain.workers.worker import Call

_EXIT_TIMEOUT_S = 5.0
_NO_LOG = b"[qnnsweep: the log was lost, because its reader was killed or does not answer]\n"


class ProcessKilled(Exception):
    """A process was killed from outside: the worker, its guard, or the process from which it is forked."""


class Process:
    """A process that runs one call, and its guard. No method waits longer than its timeout, whatever the call does."""

    def __init__(
        self, parent: ForkRequests, call: Call, timeout_s: float, *, shares: bool, stays: bool = False
    ) -> None:
        """Start the process and wait until its guard runs.

        `parent`: what forks the process. `shares`: whether the process shares most of its memory with its parent.
        `stays`: whether the process is a zygote, which stays after its call. Raises ProcessKilled if the parent has
        ended, and TimeoutError if it does not answer.
        """
        answers, sending = Pipe(duplex=False)
        control, guards_end = Pipe()
        ours, theirs = socket.socketpair() if stays else (None, None)
        self.forks = None if ours is None else ForkRequests(ours)
        """What forks this process, if it is a zygote."""
        self._shares = shares
        self._answers, self._control = Receiver(answers), Receiver(control)
        self._guard_pid: int | None = None
        self._log: bytes | None = None
        self._ended: Ended | None = None
        until, message = time.monotonic() + timeout_s, (sys.path, call.scratch, dumps(call))
        try:
            with contextlib.ExitStack() as ends:
                passed = [ends.enter_context(end) for end in (guards_end, sending, theirs) if end is not None]
                parent.fork(b"z" if stays else b"c", *passed)
            send(control, message, until)
            self._wait_for_start(until)
        except TimeoutError:
            self.close()
            raise
        except (OSError, EOFError) as error:
            self.close()
            raise ProcessKilled("the process that forks the worker was killed") from error

    def _wait_for_start(self, until: float) -> None:
        while self._guard_pid is None:
            if self._control.at_end:
                raise EOFError("the fork ended before it could run the call")
            if not self._wait(until, answers=False):
                raise TimeoutError("the process that forks does not answer")
            self._receive_control()

    def next(self, timeout_s: float) -> Message | None:
        """Return the next message; None if there is none within `timeout_s`. Raises ProcessKilled."""
        until = time.monotonic() + timeout_s
        while True:
            # In this order: whatever a process has sent can be received when its guard reports its end.
            self._receive_control()
            if (answer := self._answer()) is not None:
                return answer
            if self._ended is not None:
                if self._ended.exit_code == -signal.SIGKILL:
                    raise ProcessKilled("the worker was killed (often by the kernel's out-of-memory killer)")
                if self._ended.exit_code is not None and -self._ended.exit_code in ENDED_BY_OTHERS:
                    name = signal.Signals(-self._ended.exit_code).name
                    raise ProcessKilled(f"the worker was killed: another process sent {name}")
                return self._ended
            if self._control.at_end:
                raise ProcessKilled("the guard of the worker was killed")
            if not self._wait(until):
                return None

    def memory_usage(self) -> MemoryUsage:
        return memory_usage(self._guard_pid, shares=self._shares)

    def processor_s(self) -> float:
        return processor_s(self._guard_pid)

    def log(self, *, stacks: bool = False) -> bytes:
        """Return the log: until now, or until the end if the process has ended.

        `stacks`: whether the process first writes the stacks of its threads to the log.
        """
        if self._ended is None and not self._control.connection.closed:
            self._log = None
            self._exchange(Request.DUMP if stacks else Request.LOG, lambda: self._log is not None)
        return _NO_LOG if self._log is None else self._log

    def close(self) -> None:
        """Kill the process and its descendants. A process that has sent its answer has nothing left to do or to log."""
        if self._control.connection.closed:
            return
        is_ended = self._exchange(Request.END, lambda: self._ended is not None) or self._control.at_end
        if not is_ended and self._guard_pid is not None:  # another process can have the number of one that has ended
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._guard_pid, signal.SIGKILL)
        self._answers.close()
        self._control.close()
        if self.forks is not None:
            self.forks.close()

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
            send(self._control.connection, request, until)
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
