"""This machine as a device: a folder of its own, processes of their own, and nothing else shared."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tasks.devices.atomic_transfer import rename_into_place
from tasks.devices.transport import CommandResult, past_deadline
from tasks.devices.triage import of_channel
from tasks.errors import DeviceError

_INHERITED = ("HOME", "LANG", "PATH", "TMPDIR")


class LocalTransport:
    """`Transport` on the machine that runs qnnsweep."""

    def push(self, source: Path, target: str) -> None:
        _copy_atomically(source, Path(target))

    def pull(self, source: str, target: Path) -> None:
        _copy_atomically(Path(source), target)

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline_s: float,
        folder: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> CommandResult:
        started = time.monotonic()
        clean = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        # Output goes to files: a stray grandchild that keeps a pipe open could hold us past the deadline.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                process = subprocess.Popen(
                    list(argv),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    cwd=folder,
                    env=clean | dict(environment or {}),
                    start_new_session=True,
                )
            except OSError as error:
                raise DeviceError(f"cannot start {argv[0]!r} here: {error}") from error
            try:
                exit_code = process.wait(timeout=deadline_s)
            except subprocess.TimeoutExpired:
                _kill_session(process)
                out.seek(0)
                err.seek(0)
                raise past_deadline(argv[0], deadline_s, out.read() + err.read()) from None
            finally:
                _kill_session(process)
            out.seek(0)
            err.seek(0)
            return CommandResult(
                argv=tuple(argv),
                exit_code=exit_code,
                stdout=out.read(),
                stderr=err.read(),
                seconds=time.monotonic() - started,
            )

    def close(self) -> None:
        """Nothing is held between calls."""


def _copy_atomically(source: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".incoming-") as incoming:
            fresh = Path(incoming, "whole")
            if source.is_dir():
                shutil.copytree(source, fresh)
            else:
                shutil.copyfile(source, fresh)
            rename_into_place(fresh, target)
    except OSError as error:
        raise DeviceError(f"cannot copy {source} to {target}: {error}", problem=of_channel(str(error))) from error


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """End the process and whatever it started; nothing of a command outlives it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        process.wait()
