"""The guard of a call: the parent of the process that runs the call. It reads the log, and ends the call.

Foreign code runs in the process, and native code there may hold the interpreter lock. In the guard, no foreign code
runs. Therefore the guard always answers its caller, and it ends the call as soon as the caller is gone. All processes
that the call starts become descendants of the guard, even those with a session of their own.
"""

import ctypes
import fcntl
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import NoReturn

from qnnsweep.conf.units import MIB
from qnnsweep.tasks.process_tree import adopt_orphans, die_with_parent, fork, kill_descendants
from qnnsweep.tasks.toolchain.workers.messages import Ended, LogSoFar, Receiver, Request, Started, Unreadable, send
from qnnsweep.tasks.toolchain.workers.output import DUMP, SharedLog, WorkersLog, flush_native_output, set_log
from qnnsweep.tasks.toolchain.workers.shared_files import mount_private_folder

_PIPE_BYTES = MIB
_MOST_READS = 8
"""More than enough to empty the pipe, so that a process that prints without end cannot hold up the guard."""
_IOLBF = 1
_DUMP_S = 1.0


def guard(
    control: Connection, scratch: Path, run: Callable[[], None], passed: Sequence[Connection], *, stays: bool = False
) -> None:
    """Run `run` in a child process until it ends, or until the caller ends it. Then kill all that it has started.

    `control`: the connection to the caller. `passed`: the connections of the child, which the guard closes.
    `stays`: whether descendants of the child may live longer than the child, until the caller ends them.
    """
    adopt_orphans()
    mount_private_folder()
    log, (reading, writing) = SharedLog(), os.pipe()
    log_requests, guards_end = Pipe()
    with suppress(OSError):  # a user's pipes may be limited
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    guard_pid = os.getpid()

    def child() -> None:
        control.close()
        log_requests.close()
        os.close(reading)
        set_log(WorkersLog(log, guards_end))
        _run_child(guard_pid, scratch, writing, run)

    pid = fork(child)
    os.close(writing)
    for connection in (guards_end, *passed):
        connection.close()
    with suppress(OSError):  # the caller is gone
        send(control, Started(guard_pid))
        _Guard(control, pid, _LogPipe(reading, log, log_requests), stays=stays).run()
    kill_descendants()


class _Guard:
    """The guard's part of the conversation with the caller."""

    def __init__(self, control: Connection, pid: int, log: "_LogPipe", *, stays: bool) -> None:
        self._requests = Receiver(control)
        self._pid = pid
        self._child: int | None = os.pidfd_open(pid)
        self._log = log
        self._stays = stays

    def run(self) -> None:
        """Return when the call has ended and the caller has its log. Raises OSError if the caller is gone."""
        while True:
            ready = self._wait()
            self._log.read(ready)
            while (request := self._request()) is not None:
                if request is Request.END:
                    return self._end(kill_descendants().get(self._pid))
                if request is Request.DUMP:
                    self._dump()
                self._log.read_rest()
                send(self._requests.connection, LogSoFar(self._log.contents()))
            if self._requests.at_end:
                return None
            if self._child in ready:
                if not self._stays:
                    return self._end(kill_descendants().get(self._pid))
                self._end(os.waitpid(self._pid, 0)[1])
                os.close(self._child)
                self._child = None

    def _wait(self) -> set[int]:
        """Return the descriptors that are ready."""
        poller = select.poll()
        mine = [self._requests.connection.fileno(), *([] if self._child is None else [self._child])]
        for descriptor in mine + self._log.descriptors:
            poller.register(descriptor, select.POLLIN)
        return {descriptor for descriptor, _ in poller.poll()}

    def _request(self) -> object | None:
        try:
            return self._requests.receive()
        except Unreadable as error:
            raise OSError("the caller's request cannot be read") from error

    def _dump(self) -> None:
        """Make the child write the stacks of its threads, and wait a moment for the first of what it writes."""
        if self._child is not None:
            signal.pidfd_send_signal(self._child, DUMP)
            select.select(self._log.descriptors[:1], [], [], _DUMP_S)
            time.sleep(_DUMP_S / 10)  # for the rest

    def _end(self, status: int | None) -> None:
        self._log.read_rest()
        send(
            self._requests.connection,
            Ended(None if status is None else os.waitstatus_to_exitcode(status), self._log.contents()),
        )


class _LogPipe:
    """The pipe to which the call prints. `requests`: the process asks for the output that it has printed itself."""

    def __init__(self, descriptor: int, log: SharedLog, requests: Connection) -> None:
        self._descriptor = descriptor
        self._log = log
        self._requests = requests
        self._open = [descriptor, requests.fileno()]
        for pipe in self._open:
            os.set_blocking(pipe, False)

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that can become ready for `read`."""
        return self._open

    def read(self, ready: Container[int]) -> None:
        """Read what was printed, and answer a request for it."""
        if self._descriptor in ready:
            self._read_pipe(self._descriptor)
        if self._requests.fileno() in ready and self._read(self._requests.fileno()):
            self.read_rest()
            with suppress(OSError):  # the process does not read its answers, or is dead
                os.write(self._requests.fileno(), b"!")

    def read_rest(self) -> None:
        """Read what was printed until now."""
        for _ in range(_MOST_READS):
            if self._descriptor not in self._open or not self._read_pipe(self._descriptor):
                break

    def contents(self) -> bytes:
        return self._log.since(0)

    def _read_pipe(self, descriptor: int) -> bool:
        data = self._read(descriptor)
        self._log.add(data)
        return bool(data)

    def _read(self, descriptor: int) -> bytes:
        try:
            data = os.read(descriptor, _PIPE_BYTES)
        except BlockingIOError:
            return b""
        except ConnectionError:
            data = b""
        if not data:
            self._open.remove(descriptor)
        return data


def _run_child(guard_pid: int, scratch: Path, log: int, run: Callable[[], None]) -> NoReturn:
    """Run `run` in a new session, with `scratch` as the working directory and all output to `log`. Then exit."""
    status = 1
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.setsid()
        die_with_parent()
        if os.getppid() == guard_pid:
            os.chdir(scratch)
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
            # C's stdout is line-buffered too: an abort does not flush, and the last lines are the important ones.
            native = ctypes.CDLL(None)
            native.setvbuf(ctypes.c_void_p.in_dll(native, "stdout"), None, _IOLBF, ctypes.c_size_t(0))
            run()
            status = 0
    except BaseException:  # noqa: BLE001 - the outermost frame: the error goes to the log, and the exit code to the caller
        traceback.print_exc()
    finally:
        flush_native_output()
        os._exit(status)
