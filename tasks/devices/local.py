"""The machine that runs qnnsweep, used as a device. Each command has its own folder, session and environment."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from conf.schema import DeviceConfig
from tasks.devices.atomic_transfer import renamed_into_place
from tasks.devices.transport import CommandResult, RunRequest, past_deadline
from tasks.devices.triage import of_channel
from tasks.errors import DeviceError

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

    def pull(self, source: str, target: Path) -> None:
        _copy_atomically(Path(source), target)

    def run(self, request: RunRequest) -> CommandResult:
        started, program = time.monotonic(), request.argv[0]
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        # Output goes to files: a grandchild that keeps a pipe open could block this process past the deadline.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                process = subprocess.Popen(
                    list(request.argv),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    cwd=request.folder,
                    env=inherited | dict(request.environment),
                    start_new_session=True,
                )
            except OSError as error:
                raise DeviceError(f"cannot start {program!r} here: {error}") from error
            exit_code = None
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    exit_code = process.wait(timeout=request.deadline_s)
            finally:
                _kill_session(process)
            seconds = time.monotonic() - started
            out.seek(0)
            err.seek(0)
            stdout, stderr = out.read(), err.read()
        if exit_code is None:
            raise past_deadline(program, request.deadline_s, stdout + stderr)
        return CommandResult(
            argv=tuple(request.argv), exit_code=exit_code, stdout=stdout, stderr=stderr, seconds=seconds
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
        raise DeviceError(f"cannot copy {source} to {target}: {error}", problem=of_channel(str(error))) from error


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and all processes that it started, so that none of them outlives the command."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
