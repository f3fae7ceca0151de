"""The fork servers of the workers, one per toolchain: the program, and its start by the caller.

As a program, this module imports what all calls need. Then it forks a process for each request of its caller
(`worker.serve_requests`), until the caller ends.
"""

import atexit
import faulthandler
import gc
import importlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import IO, Any, Literal

from qnnsweep.tasks.toolchain.workers.output import DUMP

Kind = Literal[b"c", b"z", b"p"]
"""The kinds of processes that can be requested; see `worker.serve_requests`."""
_PRELOAD, _PRELOAD_SMALL = "qnnsweep.tasks.toolchain.preload", "qnnsweep.tasks.toolchain.preload_small"


class ForkRequests:
    """The caller's end of the connection to a process that forks: a fork server or a zygote. Is thread-safe."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def fork(self, kind: Kind, *ends: Connection | socket.socket) -> None:
        """Request a process, which gets the connections `ends`. Raises OSError if the process that forks has ended."""
        with self._lock:
            socket.send_fds(self._connection, [kind], [end.fileno() for end in ends])

    @property
    def is_served(self) -> bool:
        """Whether the process that forks has not ended. It sends nothing: what can be received is its end."""
        return not wait([self._connection], 0)

    def close(self) -> None:
        self._connection.close()


class ForkServer:
    """The fork server of one environment, as its caller sees it. Is thread-safe.

    A prepared toolchain has servers of its own, because the dynamic linker reads the environment only once.
    """

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str], *, compiles: bool) -> None:
        """`environment`: the variables of the toolchain. `modules`: what is imported after the toolchain's modules.

        `compiles`: whether the server imports everything that a compilation needs, or only what a comparison needs.
        """
        self._environment = dict(environment)
        self._modules = (_PRELOAD if compiles else _PRELOAD_SMALL, *modules)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._requests: ForkRequests | None = None

    @property
    def is_started(self) -> bool:
        """Whether the server has been started, and has not ended."""
        with self._lock:
            return self._requests is not None and self._requests.is_served

    def started(self) -> ForkRequests:
        """Start the server unless it runs already. Does not wait for its imports."""
        with self._lock:
            if self._requests is not None and not self._requests.is_served:  # it was killed
                self._requests.close()
                self._requests = None
            if self._requests is None:
                self._requests = self._start()
            return self._requests

    def _start(self) -> ForkRequests:
        ours, theirs = socket.socketpair()
        if self._log is None:
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as this process
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), *self._modules],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env={**os.environ, **self._environment},
                start_new_session=True,  # a signal to the caller's process group does not end it
            )
        return ForkRequests(ours)

    def stacks(self, within_s: float) -> str:
        """Return the stacks of the server's threads, for the log of a wait that was too long."""
        if self._process is None or self._log is None:
            return ""
        start = os.fstat(self._log.fileno()).st_size
        with suppress(OSError):
            self._process.send_signal(DUMP)
        with suppress(subprocess.TimeoutExpired):  # the server goes on: this waits for its answer
            self._process.wait(within_s)
        return os.pread(self._log.fileno(), 1 << 16, start).decode(errors="replace")

    def close(self) -> None:
        """Close the connection to the server, which ends the server."""
        with self._lock:
            for file in (self._requests, self._log):
                if file is not None:
                    file.close()
            self._requests = self._log = None


_servers: dict[Any, ForkServer] = {}
_servers_lock = threading.Lock()


def fork_server(environment: Mapping[str, str], modules: Sequence[str] = (), *, compiles: bool = True) -> ForkServer:
    """Return the fork server of these variables, which all users in this process share; see `ForkServer`.

    If nothing is compiled, a server with fewer imports is sufficient, unless the one that compiles has been started.
    """

    def server(*, compiles: bool) -> ForkServer:
        key = compiles, tuple(sorted(environment.items()))
        return _servers.setdefault(key, ForkServer(environment, modules, compiles=compiles))

    with _servers_lock:
        full = server(compiles=True)
        return full if compiles or full.is_started else server(compiles=False)


@atexit.register
def _close_servers() -> None:
    for server in _servers.values():
        server.close()


def main() -> None:
    """Import the modules of the arguments, and serve requests."""
    connection, *modules = sys.argv[1:]
    faulthandler.register(DUMP, file=2)
    gc.disable()  # what is imported stays, so a fifth of the time of the imports would go to vain collections
    for module in modules:
        with suppress(Exception):  # an import that fails here fails again in the worker, whose log has the error
            importlib.import_module(module)
    from qnnsweep.tasks.toolchain.workers.worker import serve_requests

    gc.enable()
    serve_requests(socket.socket(fileno=int(connection)))
    os._exit(0)  # at once: freeing all modules takes seconds


if __name__ == "__main__":
    main()
