"""The process of a toolchain call, seen from inside: its session, its log, its answer, and its end.

A plain call is forked from Python's fork server. A ground is such a process too, and stays: calls that stand on what
it made are forks of it.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any, NoReturn

from tasks.errors import EnvironmentUnusable, EvidenceError, QnnsweepError, RequestError

LOG = "child.log"
_IOLBF = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A module-level function and what it is given, in a scratch folder of its own with a log in it."""

    scratch: Path
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def serve(sending: Connection, watching: Connection, call: Call) -> None:
    """One call, its answer one message."""
    _settle_in(watching, call.scratch)
    sending.send(_answer(call.function, call.arguments)[0])


def be_ground(control: Connection, watching: Connection, call: Call) -> None:
    """Make the ground, say how that went, then fork once for each call that `control` brings, until it closes.

    A fork's connection gets its pid, then its answer, then how it ended.
    """
    _settle_in(watching, call.scratch)
    answer, ground = _answer(call.function, call.arguments)
    control.send(answer if answer[0] != "returned" else ("returned", None))
    if answer[0] != "returned":
        return
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page it looks at
    log = call.scratch / LOG
    forks: dict[int, tuple[int, Connection]] = {}
    while True:
        for ready in wait([control, *forks]):
            if ready is control:
                try:
                    asked: Call = control.recv()
                except EOFError:
                    return
                sending, watching = (Connection(recv_handle(control)) for _ in range(2))
                pid = os.fork()
                if pid == 0:
                    for _, other in forks.values():
                        other.close()
                    control.close()
                    _be_fork(sending, watching, asked, ground, log)
                watching.close()
                forks[os.pidfd_open(pid)] = pid, sending
            else:
                assert isinstance(ready, int)
                pid, sending = forks.pop(ready)
                os.close(ready)
                _report_end(pid, sending)


def _be_fork(sending: Connection, watching: Connection, call: Call, ground: Any, log: Path) -> NoReturn:
    """A call on the ground, whose log begins with the ground's own."""
    status = 1
    try:
        sending.send(("pid", os.getpid()))  # not by the ground: somebody may kill that one now
        shutil.copyfile(log, call.scratch / LOG)
        _settle_in(watching, call.scratch)
        sending.send(_answer(call.function, (ground, *call.arguments))[0])
        status = 0
    except Exception:  # noqa: BLE001 - nobody is above us: the log is told, and the caller by the exit code
        traceback.print_exc()
    finally:
        flush_native_output()
        os._exit(status)


def _report_end(pid: int, sending: Connection) -> None:
    # Not reaped yet: its number is still its own while what it left behind is killed.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):  # nobody may be listening any more
        sending.send(("ended", os.waitstatus_to_exitcode(status)))
    sending.close()


def _settle_in(watching: Connection, scratch: Path) -> None:
    """A session of its own (so that its children die with it), its folder, its log."""
    os.setsid()
    _die_with(watching)
    os.chdir(scratch)
    descriptor = os.open(scratch / LOG, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # C's stdout by lines as well: an abort does not flush, and its last words are the ones that count.
    native = ctypes.CDLL(None)
    native.setvbuf(ctypes.c_void_p.in_dll(native, "stdout"), None, _IOLBF, ctypes.c_size_t(0))


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
    """What to tell the caller, and what the function gave."""
    given = None
    try:
        given = function(*arguments)
        answer: tuple[Any, ...] = ("returned", given)
    except (RequestError, EnvironmentUnusable, EvidenceError) as error:
        traceback.print_exc()
        answer = ("refused", error)
    except QnnsweepError as error:
        traceback.print_exc()
        answer = ("raised", type(error).__name__, str(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the border where foreign errors become ours
        traceback.print_exc()
        answer = ("raised", type(error).__name__, str(error).strip() or repr(error))
    flush_native_output()
    return answer, given


def _die_with(watching: Connection) -> None:
    """Have the kernel kill this process group when the caller, who alone holds the other end of the pipe, is gone.

    A thread of ours could not do it while native code holds the interpreter; the death of the fork server is no sign
    of it, because every child keeps that one alive.
    """
    fcntl.fcntl(watching, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(watching, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(watching, fcntl.F_SETFL, os.O_ASYNC)
    if watching.poll():  # it was gone before the kernel knew what to do
        os.killpg(0, signal.SIGKILL)


def flush_native_output() -> None:
    """What native code wrote to C's stdout is buffered there; a forked child leaves without flushing it."""
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
