"""This machine as a device: its commands have a folder and processes of their own and share nothing else."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from conf.schema import DeviceConfig
from tasks.devices.atomic_transfer import rename_into_place
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
            try:
                exit_code = process.wait(timeout=request.deadline_s)
            except subprocess.TimeoutExpired:
                _kill_session(process)
                out.seek(0)
                err.seek(0)
                raise past_deadline(program, request.deadline_s, out.read() + err.read()) from None
            finally:
                _kill_session(process)
            out.seek(0)
            err.seek(0)
            return CommandResult(
                argv=tuple(request.argv),
                exit_code=exit_code,
                stdout=out.read(),
                stderr=err.read(),
                seconds=time.monotonic() - started,
            )

    def close(self) -> None:
        """Do nothing: no resource is held between calls."""


def _copy_atomically(source: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".incoming-") as incoming:
            fresh = Path(incoming, "complete")
            if source.is_dir():
                shutil.copytree(source, fresh)
            else:
                shutil.copyfile(source, fresh)
            rename_into_place(fresh, target)
    except OSError as error:
        raise DeviceError(f"cannot copy {source} to {target}: {error}", problem=of_channel(str(error))) from error


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and all that it started, so that nothing outlives a command."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        process.wait()
