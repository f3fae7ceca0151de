"""Lines of Python that run in forks of a process with the imports of the program, instead of in a new process.

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
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from types import ModuleType
from typing import IO, NoReturn

from qnnsweep.flows.cli.ending import end
from qnnsweep.tasks.process_tree import fork

ROOT = Path(__file__).parents[1]
_MESSAGE_BYTES = 1 << 16
_START_S = 120
_LATE = "QNNSWEEP_TOOLCHAINS"
"""The only variable that may differ between the forks: no import reads it, and no fork server."""


class WarmPython:
    """The process that is forked, as the tests see it. It starts with the first lines, and ends with this object."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._requests: socket.socket | None = None

    def has(self, environment: Mapping[str, str]) -> bool:
        """Return whether lines that need these variables can run in a fork of the process."""
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
            pid = _number(told)
            ours.settimeout(timeout_s)
            try:
                code = _number(told)
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
        # A process of its own session, and no child of this one, which may end earlier.
        command = ["setsid", "--fork", sys.executable, "-c", f"from tests.warm import serve; serve({theirs.fileno()})"]
        with theirs:
            subprocess.run(command, cwd=ROOT, env=self._environment, pass_fds=[theirs.fileno()], check=True)
        return ours


def _number(told: IO[str]) -> int:
    """Return the next number that the process tells. Raises AssertionError if it has ended."""
    line = told.readline()
    assert line, "the process that is forked has ended: its traceback is in the output of the tests"
    return int(line)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def serve(requests: int) -> None:
    """Start the fork server, import what the program imports, and fork for each request until the tests end.

    For each fork, write the number of its process, and its exit code when it has ended.
    """
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
    asked = socket.socket(fileno=requests)
    running: dict[int, tuple[int, int]] = {}
    while True:
        for ready in wait([asked, *running]):
            if ready is asked:
                message, descriptors, *_ = socket.recv_fds(asked, _MESSAGE_BYTES, 3)
                if not message:
                    return
                status, *outputs = descriptors
                pid = fork(partial(_become, json.loads(message), (requests, status), *outputs))
                os.write(status, f"{pid}\n".encode())
                for descriptor in outputs:
                    os.close(descriptor)
                running[os.pidfd_open(pid)] = pid, status
            else:
                assert isinstance(ready, int)
                pid, status = running.pop(ready)
                _, ended = os.waitpid(pid, 0)
                with contextlib.suppress(BrokenPipeError):  # the test did not wait any longer
                    os.write(status, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
                for descriptor in (ready, status):
                    os.close(descriptor)


def _become(command: list[str], others: Sequence[int], stdout: int, stderr: int) -> NoReturn:
    """Run the lines in a session of their own, as `Program.start` does. `others`: descriptors of the parent process."""
    folder, os.environ[_LATE], lines, *arguments = command
    code = 1
    try:
        for descriptor in others:
            os.close(descriptor)
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
