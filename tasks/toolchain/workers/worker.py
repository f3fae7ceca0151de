"""The code that runs in a worker process: its session, its log, its answer, and its end.

A worker is forked from Python's fork server for one call. A zygote is a worker that stays alive after its call. Its
forks then run later calls, which need the value that the zygote's call returned.
"""

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

from tasks.errors import EnvironmentUnusable, EvidenceError, RequestError
from tasks.toolchain.workers.messages import Answer, Ended, Raised, Refused, Returned, Started

LOG = "worker.log"
_IOLBF = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A module-level function and its arguments, and the scratch folder of the call, which contains the log."""

    scratch: Path
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def serve_call(sending: Connection, watching: Connection, call: Call) -> None:
    """Run one call and send its answer."""
    _enter_session(watching, call.scratch)
    sending.send(_answer(call.function, call.arguments))


def serve_zygote(control: Connection, watching: Connection, call: Call) -> None:
    """Run `call` and report its success, without its value. Then run each call that `control` receives in a fork.

    It ends when `control` closes. Each fork has a connection to the caller, for `Started`, the answer and `Ended`.
    """
    _enter_session(watching, call.scratch)
    answer = _answer(call.function, call.arguments)
    if not isinstance(answer, Returned):
        control.send(answer)
        return
    control.send(Returned(None))
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page that it looks at
    log = call.scratch / LOG
    forks: dict[int, tuple[int, Connection]] = {}
    while True:
        for ready in wait([control, *forks]):
            if ready is control:
                try:
                    forked_call: Call = control.recv()
                except EOFError:
                    return
                sending, watching = (Connection(recv_handle(control)) for _ in range(2))
                pid = os.fork()
                if pid == 0:
                    for _, other in forks.values():
                        other.close()
                    control.close()
                    _serve_fork(sending, watching, forked_call, answer.value, log)
                watching.close()
                forks[os.pidfd_open(pid)] = pid, sending
            else:
                assert isinstance(ready, int)
                pid, sending = forks.pop(ready)
                os.close(ready)
                _report_end(pid, sending)


def _serve_fork(sending: Connection, watching: Connection, call: Call, value: Any, log: Path) -> NoReturn:
    """Run a call on the zygote's value, and exit. The call's log begins with a copy of the zygote's log."""
    status = 1
    try:
        sending.send(Started(os.getpid()))  # sent by the fork, because the zygote may be killed at this moment
        shutil.copyfile(log, call.scratch / LOG)
        _enter_session(watching, call.scratch)
        sending.send(_answer(call.function, (value, *call.arguments)))
        status = 0
    except Exception:  # noqa: BLE001 - the outermost frame: the error goes to the log, and the exit code to the caller
        traceback.print_exc()
    finally:
        flush_native_output()
        os._exit(status)


def _report_end(pid: int, sending: Connection) -> None:
    # Wait without reaping: the process id stays reserved while the rest of the process group is killed.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):  # the caller may have closed its end
        sending.send(Ended(os.waitstatus_to_exitcode(status)))
    sending.close()


def _enter_session(watching: Connection, scratch: Path) -> None:
    """Start a session, so that child processes die with this process. Then switch to the call's folder and log."""
    os.setsid()
    _die_with(watching)
    os.chdir(scratch)
    descriptor = os.open(scratch / LOG, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # C's stdout is line-buffered too: an abort does not flush, and the last lines before it are the important ones.
    native = ctypes.CDLL(None)
    native.setvbuf(ctypes.c_void_p.in_dll(native, "stdout"), None, _IOLBF, ctypes.c_size_t(0))


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Answer:
    try:
        return Returned(function(*arguments))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code may raise anything
        traceback.print_exc()
        if isinstance(error, RequestError | EnvironmentUnusable | EvidenceError):
            return Refused(error)
        return Raised(type(error).__name__, str(error).strip() or repr(error))
    finally:
        flush_native_output()


def _die_with(watching: Connection) -> None:
    """Make the kernel kill this process group when the caller is gone. Only the caller has the other end of `watching`.

    A thread of this process could not kill it while native code holds the interpreter lock. The fork server cannot show
    that the caller is gone, because every worker keeps the fork server alive.
    """
    fcntl.fcntl(watching, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(watching, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(watching, fcntl.F_SETFL, os.O_ASYNC)
    if watching.poll():  # the caller was gone before the signal was set up
        os.killpg(0, signal.SIGKILL)


def flush_native_output() -> None:
    """Flush Python's and C's stdout. C's stdout buffers native code's output, and a fork exits without flushing it."""
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
