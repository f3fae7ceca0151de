"""Python with qnnsweep, without its start: each command runs in a fork of a process that has made the same imports.

The start takes most of the processor time of a small sweep: the imports of the program, and those of its fork server,
which the forks share. Tests of the start, of signals and of kills start the program itself.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, NoReturn

from qnnsweep.flows.cli.ending import end

ROOT = Path(__file__).parents[1]
_MESSAGE_BYTES = 1 << 16
_START_S = 120
_LATE = "QNNSWEEP_TOOLCHAINS"
"""A variable that is read for each request."""


class WarmPython:
    """The process that is forked, as the tests see it. It starts with the first command, and ends with this object."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._requests: socket.socket | None = None

    def has(self, environment: Mapping[str, str]) -> bool:
        """Return whether the process can be used: its imports and its fork server have read the other variables."""
        return {**environment, _LATE: ""} == {**self._environment, _LATE: ""}

    def run(
        self, folder: Path, environment: Mapping[str, str], lines: str, arguments: Sequence[str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run `python -c lines arguments` in a working directory to its end, as `subprocess.run` does."""
        if self._requests is None:
            self._requests = self._start()
        message = json.dumps([str(folder), environment[_LATE], lines, *arguments]).encode()
        ours, theirs = socket.socketpair()
        with ours, ours.makefile() as told, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with theirs:
                socket.send_fds(self._requests, [message], [theirs.fileno(), out.fileno(), err.fileno()])
            ours.settimeout(_START_S)
            pid = int(told.readline())
            ours.settimeout(timeout_s)
            try:
                code = int(told.readline())
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                raise
            return subprocess.CompletedProcess([lines, *arguments], code, _text(out), _text(err))

    def close(self) -> None:
        if self._requests is not None:
            self._requests.close()

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lines = f"from tests.warm import serve; serve({theirs.fileno()})"
        with theirs:
            subprocess.Popen(
                ["setsid", "--fork", sys.executable, "-c", lines],
                cwd=ROOT,
                env=self._environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            ).wait()
        return ours


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def serve(requests: int) -> None:
    """Start the fork server, import what the program imports, and fork for each command until the tests end."""
    from qnnsweep.conf.toolchains import ToolchainConfig
    from qnnsweep.flows.cells.toolchains import MODULES_OF_CALLS
    from qnnsweep.flows.server.settings import configure_prefect
    from qnnsweep.tasks.toolchain.prepared.choice import toolchain_of
    from qnnsweep.tasks.toolchain.workers.server import fork_server

    environment, *_ = toolchain_of(ToolchainConfig())
    fork_server(environment, MODULES_OF_CALLS).started()
    configure_prefect()
    import qnnsweep.flows.cli.main
    import qnnsweep.flows.sweep  # noqa: F401 - the program imports it when the request is checked

    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the forks here
    with socket.socket(fileno=requests) as asked:
        while True:
            message, descriptors, *_ = socket.recv_fds(asked, _MESSAGE_BYTES, 3)
            if not message:
                return
            if os.fork() == 0:
                asked.close()
                _report(json.loads(message), *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)


def _report(command: list[str], status: int, stdout: int, stderr: int) -> NoReturn:
    """Start the program in a fork. Write the number of its process, and its exit code when it has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(status)
        _become(command, stdout, stderr)
    os.write(status, f"{pid}\n".encode())
    _, ended = os.waitpid(pid, 0)
    os.write(status, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
    os._exit(0)


def _become(command: list[str], stdout: int, stderr: int) -> NoReturn:
    """Become the program, in a session of its own, as `Program.start` starts it."""
    folder, os.environ[_LATE], lines, *arguments = command
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        sys.argv[1:] = arguments
        sys.modules["__main__"] = module = ModuleType("__main__")
        exec(lines, vars(module))
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - the outermost frame
        traceback.print_exc()
    finally:
        end(code)
