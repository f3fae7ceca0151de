"""Processes that must not outlive their supervisor, even if they start sessions of their own.

As a program, this module supervises one command. It kills the command and all processes that the command started when
the command ends, when its deadline has passed, or when the caller ends. It imports only a few modules of the standard
library, because it is started once per command of the local device.
"""

import ctypes
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
ENDED_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals with which other processes, or the kernel short of memory, end a program. They say nothing about it."""
CALLER = 0
"""The descriptor of a socket: the caller sends one line with the request, and gets one line with the result."""


def fork(child: Callable[[], object]) -> int:
    """Run `child` in a fork of this process, which then exits. Return the process id of the fork.

    Nothing else in qnnsweep forks a process. The process must not have computed in several threads: the fork would wait
    for them for ever, or for a lock that one of them held.
    """
    pid = os.fork()
    if pid == 0:
        try:
            child()
        finally:
            os._exit(1)
    return pid


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends. Raises OSError."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends. Raises OSError."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def kill_descendants() -> dict[int, int]:
    """Kill all descendants of this process and wait for their ends. Return their wait statuses by process id.

    The process must have called `adopt_orphans` before it started the first of them. A descendant that has ended before
    keeps the status of its end.
    """
    statuses: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:  # all remaining children are alive; their children become ours
                for child in _children():
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(child, signal.SIGKILL)
                pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return statuses
        statuses[pid] = status


def _children() -> list[int]:
    children: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name of the program, in parentheses, may contain anything; the state and the parent follow.
            _, parent = stat.read_bytes().rpartition(b")")[2].split()[:2]
            if int(parent) == os.getpid():
                children.append(int(stat.parent.name))
    return children


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


Program = Callable[[dict[str, Any], int], None]
"""A function that turns this process into the program of a request, and closes a descriptor when that has succeeded."""


def supervise(program: Program) -> None:
    """Run the command of the request. Send `problem` (why it was not started, or null) and its wait `status`."""
    with open(CALLER, "rb", closefd=False) as lines:
        request = json.loads(lines.readline())
    adopt_orphans()
    reading, writing = os.pipe()
    pid = fork(lambda: _start(program, request, writing))
    os.close(writing)
    problem = os.read(reading, 4096).decode(errors="replace")  # ends when the command has been started
    if not problem:
        poller = select.poll()
        poller.register(os.pidfd_open(pid), select.POLLIN)
        poller.register(CALLER, select.POLLIN)  # only the caller's end makes it readable
        poller.poll(request["deadline_s"] * 1000)
    status = kill_descendants()[pid]
    with suppress(OSError):
        os.write(CALLER, json.dumps({"problem": problem or None, "status": status}).encode())


def _start(program: Program, request: dict[str, Any], failed: int) -> NoReturn:
    """Become the program of the request. If this fails, write the reason to the descriptor `failed`."""
    try:
        os.setsid()
        die_with_parent()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
            signal.signal(number, signal.SIG_DFL)
        if request["folder"] is not None:
            os.chdir(request["folder"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), CALLER)
        program(request, failed)
    except (OSError, ValueError) as error:
        os.write(failed, str(error).encode(errors="replace"))
    finally:
        os._exit(127)


def _execute(request: dict[str, Any], _failed: int) -> None:
    """Replace this process by the program, which closes the descriptor."""
    os.execvpe(request["argv"][0], request["argv"], request["environment"])  # noqa: S606 - no shell


if __name__ == "__main__":
    supervise(_execute)
    sys.exit()
