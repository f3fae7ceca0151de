"""The machine that runs qnnsweep, used as a device. Each command has its own folder, session and environment."""

import contextlib
import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from qnnsweep.conf.devices import DeviceConfig, RunnerKind
from qnnsweep.tasks import process_tree
from qnnsweep.tasks.devices.atomic_transfer import pull_atomically, renamed_into_place
from qnnsweep.tasks.devices.output import ProcessOutput
from qnnsweep.tasks.devices.transport import CommandResult, Fence, RunRequest, lease_lost, past_deadline
from qnnsweep.tasks.devices.triage import of_channel
from qnnsweep.tasks.errors import DeviceError, EnvironmentUnusable
from qnnsweep.tasks.storage.digest import digest

_EXTRA_S = 15
"""The number of seconds from this process's deadline to the supervisor's, which is needed if this process hangs."""
_GRACE_S = 5.0
_ANSWER_BYTES = 4096
_INHERITED = ("HOME", "LANG", "PATH", "TMPDIR")
PYTHON = [sys.executable, "-P"]
"""How the command line of a program begins that may run in a fork."""

StartSupervisor = Callable[[socket.socket, Connection, Connection], Callable[[], None]]
"""A function that starts `process_tree.supervise` with a socket to its caller, and with pipes for stdout and stderr.

It returns a function that kills the supervisor, unless it has ended. The kernel then kills its program too."""


def local_folder(config: DeviceConfig, folder: Path) -> str:
    """Return the work folder of a device that this machine is, or asks for jobs. `folder`: that of the farm."""
    is_hosted = config.runner is RunnerKind.aihub
    name = f"aihub-{digest([config.aihub.device, config.aihub.os])[:16]}" if is_hosted else "local"
    return config.work_folder or str(folder / name)


@dataclass(slots=True)
class LocalTransport:
    """A `Transport` to the machine that runs qnnsweep."""

    fork: StartSupervisor | None = None
    """Starts a supervisor whose Python program runs in a fork of a process that has imported PyTorch. It saves the time
    that a new process needs for this import. None: every program runs in a new process."""
    fence: Fence | None = None

    @classmethod
    def of(cls, _config: DeviceConfig) -> "LocalTransport":
        return cls()

    @classmethod
    def identity(cls, config: DeviceConfig, folder: Path) -> str:
        return f"local {socket.gethostname()} {local_folder(config, folder)}"

    def push(self, source: Path, target: str) -> None:
        _copy_atomically(source, Path(target))

    def pull(self, folder: str, sizes: Mapping[str, int], target: Path) -> None:
        with pull_atomically(sizes, target) as arriving:
            for name, size in sizes.items():
                source = Path(folder, name)
                if not source.is_file() or source.stat().st_size != size:
                    raise DeviceError(f"cannot pull {source} to {target}: it is not a file of {size} bytes")
                shutil.copyfile(source, arriving / name)

    def run(self, request: RunRequest) -> CommandResult:
        self._check_lock(request)
        try:
            return self._run(request)
        finally:
            self._check_lock(request)

    def _check_lock(self, request: RunRequest) -> None:
        """Raise LeaseLost if a command may not run, or should not have run. This machine sleeps together with it."""
        fence = self.fence
        if fence is not None and request.is_fenced and not (_is_held(fence) or (time.sleep(1) or _is_held(fence))):
            raise lease_lost(request.argv[0])

    def _run(self, request: RunRequest) -> CommandResult:
        program = request.argv[0]
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        supervised = {
            "argv": list(request.argv),
            "folder": request.folder,
            "environment": inherited | dict(request.environment),
            "deadline_s": request.deadline_s + _EXTRA_S,
        }
        ours, supervisors = socket.socketpair()
        (stdout_pipe, printed), (stderr_pipe, errors) = Pipe(duplex=False), Pipe(duplex=False)
        with ours, stdout_pipe, stderr_pipe:
            with supervisors, printed, errors:
                # The supervisor kills the program and all its descendants when `ours` closes, even if this process is
                # killed. Arguments and variables are sent through the socket: no list of processes shows them.
                end = self._start_supervisor(request, supervisors, printed, errors)
            started, answer, in_time = time.monotonic(), b"", False
            output = ProcessOutput(stdout_pipe.fileno(), stderr_pipe.fileno(), ended=ours.fileno())
            try:
                ours.settimeout(request.deadline_s)
                with contextlib.suppress(OSError):  # the supervisor has ended, and has written the reason
                    ours.sendall(json.dumps(supervised).encode() + b"\n")
                if in_time := output.read_until_end(request.deadline_s):
                    with contextlib.suppress(ConnectionError):
                        answer = ours.recv(_ANSWER_BYTES)
            finally:
                with contextlib.suppress(OSError):
                    ours.shutdown(socket.SHUT_WR)
                if not in_time:
                    output.read_until_end(_GRACE_S)
                end()
        stdout, stderr = output.stdout.bytes(), output.stderr.bytes()
        if not in_time:
            raise past_deadline(program, request.deadline_s, stdout + stderr)
        ended: dict[str, Any] = (
            json.loads(answer) if answer else {"problem": stderr.decode(errors="replace")[-_ANSWER_BYTES:]}
        )
        if ended["problem"] is not None:
            raise DeviceError(f"cannot start {program!r} here: {ended['problem']}")
        return CommandResult(
            argv=tuple(request.argv),
            exit_code=os.waitstatus_to_exitcode(ended["status"]),
            stdout=stdout,
            stderr=stderr,
            seconds=time.monotonic() - started,
            dropped_bytes=output.stdout.dropped_bytes + output.stderr.dropped_bytes,
        )

    def _start_supervisor(
        self, request: RunRequest, caller: socket.socket, stdout: Connection, stderr: Connection
    ) -> Callable[[], None]:
        if self.fork is not None and list(request.argv[: len(PYTHON)]) == PYTHON:
            with contextlib.suppress(OSError, EOFError):  # the process with PyTorch was killed
                return self.fork(caller, stdout, stderr)
        return start_supervisor(caller, stdout, stderr)

    def close(self) -> None:
        """Do nothing: no resource is held between calls."""


def _is_held(fence: Fence) -> bool:
    """Return whether the holder's name is in the file of the lock and its lease has not ended."""
    try:
        held, until, _ = Path(fence.holder).read_text(errors="replace").split()
        return held == fence.token and time.clock_gettime(time.CLOCK_BOOTTIME) < int(until)
    except (OSError, ValueError):
        return False


def _copy_atomically(source: Path, target: Path) -> None:
    try:
        with renamed_into_place(target) as arriving:
            if source.is_dir():
                shutil.copytree(source, arriving)
            else:
                shutil.copyfile(source, arriving)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # the disk of this machine: another device is of no use
            problem = f"cannot store {target}: {os.strerror(error.errno)}"
            raise EnvironmentUnusable(problem, remedy="free some space there, or set device.work_folder") from error
        raise DeviceError(f"cannot copy {source} to {target}: {error}", problem=of_channel(str(error))) from error


def start_supervisor(caller: socket.socket, stdout: Connection, stderr: Connection) -> Callable[[], None]:
    """Start the supervisor of a program that runs in a new process."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", process_tree.__file__],
        stdin=caller.fileno(),
        stdout=stdout.fileno(),
        stderr=stderr.fileno(),
        env={},
        start_new_session=True,
    )

    def end() -> None:
        process.kill()
        process.wait()

    return end
