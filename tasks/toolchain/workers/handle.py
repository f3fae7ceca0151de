"""The caller's handle of a worker process. It starts and kills the process, and gets its messages and memory usage."""

import contextlib
import os
import signal
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.reduction import send_handle
from typing import Any

import psutil

from tasks.toolchain.workers.messages import Ended, Message, Started
from tasks.toolchain.workers.worker import Call, serve_call, serve_zygote

_EXIT_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryUsage:
    """The memory of a process and of its descendants."""

    resident_bytes: int
    own_bytes: int
    """The part that the end of the process would free. A fork shares its other pages with its zygote."""


class Worker:
    """A process that the fork server forks for one call. `Fork` has the same methods."""

    def __init__(self, context: ForkServerContext, call: Call) -> None:
        self._receiving, sending = context.Pipe(duplex=False)
        self._start(context, serve_call, sending, call)

    def _start(self, context: ForkServerContext, target: Any, workers_end: Connection, call: Call) -> None:
        watching, self._living = context.Pipe(duplex=False)
        self._process = context.Process(target=target, args=(workers_end, watching, call), daemon=False)
        self._process.start()
        workers_end.close()
        watching.close()

    def next(self, timeout_s: float) -> Message | None:
        """Return the next message; None if there is none within `timeout_s`."""
        # The process is watched too, because a child process of it may hold the pipe open after the process has died.
        ready = wait([self._receiving, self._process.sentinel], timeout=timeout_s)
        if self._receiving in ready:
            # OSError: the process died while it sent its answer.
            with contextlib.suppress(EOFError, OSError):
                return self._receiving.recv()
        if not ready:
            return None
        self._process.join(timeout=_EXIT_TIMEOUT_S)
        return Ended(self._process.exitcode)

    def memory_usage(self) -> MemoryUsage:
        return _memory_usage(self._process.pid, shares=False)

    def close(self) -> None:
        """Kill the process and its descendants. A process that has sent its answer has nothing left to do or to log."""
        if self._receiving.closed:
            return
        assert self._process.pid is not None, "started"
        _kill_group(self._process.pid)
        self._process.kill()  # it may not lead a process group yet
        self._process.join()
        self._receiving.close()
        self._living.close()


class ZygoteWorker(Worker):
    """A worker that does not end after its call. Every fork of it has the value that the call returned."""

    def __init__(self, context: ForkServerContext, call: Call) -> None:
        self._receiving, control = context.Pipe(duplex=True)
        self._fork_lock = threading.Lock()
        self._start(context, serve_zygote, control, call)

    def fork(self, context: ForkServerContext, call: Call) -> "Fork":
        """Start a call; the zygote's value is its first argument. Raises OSError or EOFError if the zygote is dead."""
        receiving, sending = context.Pipe(duplex=False)
        watching, living = context.Pipe(duplex=False)
        assert self._process.pid is not None, "started"
        with self._fork_lock:
            self._receiving.send(call)
            for end in (sending, watching):
                send_handle(self._receiving, end.fileno(), self._process.pid)
                end.close()
        first = receiving.recv()
        if not isinstance(first, Started):
            raise EOFError("the fork ended before it could run the call")
        return Fork(first.pid, receiving, living)


class Fork:
    """A call in a fork of a zygote. The zygote reports the fork's end, and kills the fork's remaining processes."""

    def __init__(self, pid: int, receiving: Connection, living: Connection) -> None:
        self._pid = pid
        self._receiving = receiving
        self._living = living
        self._ended = False

    def next(self, timeout_s: float) -> Message | None:
        if not self._receiving.poll(timeout_s):
            return None
        message: Message = Ended(None)
        with contextlib.suppress(EOFError, OSError):  # the zygote died too
            message = self._receiving.recv()
        self._ended = isinstance(message, Ended)
        return message

    def memory_usage(self) -> MemoryUsage:
        return _memory_usage(self._pid, shares=True)

    def close(self) -> None:
        if not self._ended and self.next(0) is None:
            _kill_group(self._pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)  # it may not lead a process group yet
        while not self._ended and self.next(_EXIT_TIMEOUT_S) is not None:
            pass
        self._receiving.close()
        self._living.close()


Process = Worker | Fork


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _memory_usage(pid: int | None, *, shares: bool) -> MemoryUsage:
    """Add up the memory of a process and its descendants. `shares`: whether the process shares pages with a zygote."""
    resident = unshared = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                rss = process.memory_info().rss
                resident += rss
                unshared += process.memory_full_info().uss if shares else rss
    return MemoryUsage(resident_bytes=resident, own_bytes=unshared)
