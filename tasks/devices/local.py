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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conf.schema import DeviceConfig
from tasks import process_tree
from tasks.devices.atomic_transfer import pull_atomically, renamed_into_place
from tasks.devices.output import ProcessOutput
from tasks.devices.transport import CommandResult, RunRequest, past_deadline
from tasks.devices.triage import of_channel
from tasks.errors import DeviceError, EnvironmentUnusable

_EXTRA_S = 15
"""The number of seconds from this process's deadline to the supervisor's, which is needed if this process hangs."""
_GRACE_S = 5.0
_ANSWER_BYTES = 4096
_INHERITED = ("HOME", "LANG", "PATH", "TMPDIR")


class LocalTransport:
    """A `Transport` to the machine that runs qnnsweep."""

    @classmethod
    def of(cls, _config: DeviceConfig) -> "LocalTransport":
        return cls()

    @classmethod
    def identity(cls, config: DeviceConfig, folder: Path) -> str:
        return f"local {socket.gethostname()} {config.work_folder or folder / 'local'}"

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
        started, program = time.monotonic(), request.argv[0]
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        supervised = {
            "argv": list(request.argv),
            "folder": request.folder,
            "environment": inherited | dict(request.environment),
            "deadline_s": request.deadline_s + _EXTRA_S,
        }
        ours, supervisors = socket.socketpair()
        with ours:
            with supervisors:
                # The supervisor kills the program and all its descendants when `ours` closes, even if this process is
                # killed. Arguments and variables are sent through the socket: no list of processes shows them.
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", process_tree.__file__],
                    stdin=supervisors.fileno(),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={},
                    start_new_session=True,
                )
            output, answer, in_time = ProcessOutput(process), b"", False
            try:
                ours.settimeout(request.deadline_s)
                with contextlib.suppress(OSError):  # the supervisor has ended, and has written the reason
                    ours.sendall(json.dumps(supervised).encode() + b"\n")
                if in_time := output.read_until_end(request.deadline_s):
                    answer = ours.recv(_ANSWER_BYTES)
            finally:
                ours.close()
                if not in_time:
                    output.read_until_end(_GRACE_S)
                _end(process)
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

    def close(self) -> None:
        """Do nothing: no resource is held between calls."""


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


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the supervisor, unless it has ended. If it is killed, the kernel kills the program too."""
    process.kill()
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
