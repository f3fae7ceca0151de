"""The process of a toolchain call, seen from outside: started, listened to, weighed, ended."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.reduction import send_handle
from typing import Any, Protocol

import psutil

from tasks.toolchain.workers.worker import Call, be_ground, serve

_DYING_S = 5.0

Message = tuple[Any, ...]
"""("returned", value), ("refused", error), ("raised", name, text) or, last of all, ("ended", exit code or None)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weight:
    resident_bytes: int
    own_bytes: int
    """What would be free without it: not what a fork shares with its ground."""


class Process(Protocol):
    def next(self, timeout_s: float) -> Message | None:
        """What it says next; None when it said nothing for so long."""
        ...

    def weigh(self) -> Weight:
        """Its memory now, with that of all it started."""
        ...

    def close(self) -> None:
        """Kill it and what it started. One that has answered has nothing left to do, and its log is written."""
        ...


class Child:
    """Forked from the fork server for one call."""

    def __init__(self, context: ForkServerContext, call: Call) -> None:
        self._receiving, sending = context.Pipe(duplex=False)
        self._start(context, serve, sending, call)

    def _start(self, context: ForkServerContext, target: Any, theirs: Connection, call: Call) -> None:
        watching, self._living = context.Pipe(duplex=False)
        self._child = context.Process(target=target, args=(theirs, watching, call), daemon=False)
        self._child.start()
        theirs.close()
        watching.close()

    def next(self, timeout_s: float) -> Message | None:
        # The process is watched too: a child of its own may hold the pipe open after its death.
        ready = wait([self._receiving, self._child.sentinel], timeout=timeout_s)
        if self._receiving in ready:
            # OSError: it died in the middle of its answer.
            with contextlib.suppress(EOFError, OSError):
                return self._receiving.recv()
        if not ready:
            return None
        self._child.join(timeout=_DYING_S)
        return "ended", self._child.exitcode

    def weigh(self) -> Weight:
        return _weighed(self._child.pid, shares=False)

    def close(self) -> None:
        if self._receiving.closed:
            return
        assert self._child.pid is not None, "started"
        _kill_group(self._child.pid)
        self._child.kill()  # it may not have come to lead its own group yet
        self._child.join()
        self._receiving.close()
        self._living.close()


class GroundChild(Child):
    """A child that stays when its call has returned: what it made is there in every fork of it."""

    def __init__(self, context: ForkServerContext, call: Call) -> None:
        self._receiving, control = context.Pipe(duplex=True)
        self._asking = threading.Lock()
        self._start(context, be_ground, control, call)

    def fork(self, context: ForkServerContext, call: Call) -> Fork:
        """Start the call on what the ground made. Raises OSError or EOFError when the ground is dead."""
        receiving, sending = context.Pipe(duplex=False)
        watching, living = context.Pipe(duplex=False)
        assert self._child.pid is not None, "started"
        with self._asking:
            self._receiving.send(call)
            for end in (sending, watching):
                send_handle(self._receiving, end.fileno(), self._child.pid)
                end.close()
        kind, pid = receiving.recv()
        if kind != "pid":
            raise EOFError("it ended before it had begun")
        return Fork(pid, receiving, living)


class Fork:
    """A call on a ground. The ground is its parent: it says how the fork ended, and kills what that left running."""

    def __init__(self, pid: int, receiving: Connection, living: Connection) -> None:
        self._pid = pid
        self._receiving = receiving
        self._living = living
        self._ended = False

    def next(self, timeout_s: float) -> Message | None:
        if not self._receiving.poll(timeout_s):
            return None
        message: Message = ("ended", None)
        with contextlib.suppress(EOFError, OSError):  # the ground died too
            message = self._receiving.recv()
        self._ended = message[0] == "ended"
        return message

    def weigh(self) -> Weight:
        return _weighed(self._pid, shares=True)

    def close(self) -> None:
        if not self._ended and self.next(0) is None:
            _kill_group(self._pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)  # it may not have come to lead its own group yet
        while not self._ended and self.next(_DYING_S) is not None:
            pass
        self._receiving.close()
        self._living.close()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _weighed(pid: int | None, *, shares: bool) -> Weight:
    """The process and all that it started, as far as they still live; `shares`: some of its pages are its ground's."""
    resident = own = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                if shares:
                    weight = process.memory_full_info()
                    resident, own = resident + weight.rss, own + weight.uss
                else:
                    alone = process.memory_info().rss
                    resident, own = resident + alone, own + alone
    return Weight(resident_bytes=resident, own_bytes=own)
