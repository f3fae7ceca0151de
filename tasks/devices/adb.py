"""A phone over ADB, through the host's `adb` program and its server, here or on another host."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tasks.devices.atomic_transfer import pull_atomically, push_atomically
from tasks.devices.remote_command import RemoteCommand
from tasks.devices.transport import CommandResult, past_deadline
from tasks.devices.triage import of_channel
from tasks.errors import DeviceError, DeviceProblem

_GRACE_S = 5.0
_PROGRESS = re.compile(r"\[\s*\d+%\][^\r\n]*[\r\n]*")
_HOUSEKEEPING_S = 60.0


@dataclass(kw_only=True, slots=True)
class AdbTransport:
    """`Transport` over ADB. `adb` itself exits with 0 on a lost device: nothing it says is taken for success."""

    serial: str
    deadline_s: float
    """For each transfer."""
    server: tuple[str, int] | None = None
    """Host and port of the adb server; None is adb's own default."""
    _ready: bool = False
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def push(self, source: Path, target: str) -> None:
        def transfer(arriving: str) -> None:
            self._transfer("push", str(source.absolute()), arriving, f"{source} to {target}")

        push_atomically(self, source, target, transfer)

    def pull(self, source: str, target: Path) -> None:
        def transfer(fresh: Path) -> None:
            self._transfer("pull", source, str(fresh.absolute()), f"{source} to {target}")

        pull_atomically(source, target, transfer)

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline_s: float,
        folder: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> CommandResult:
        self._connect()
        command = RemoteCommand.of(argv, deadline_s=deadline_s, folder=folder, environment=environment)
        started = time.monotonic()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = self._start("shell", "-T", "-e", "none", command.start, stdin=subprocess.PIPE, out=out, err=err)
            feeder = threading.Thread(target=_feed, args=(process, command.script), daemon=True)
            feeder.start()
            try:
                in_time = _ends_within(deadline_s, process)
            finally:
                _end(process, feeder)
            out.seek(0)
            err.seek(0)
            stdout, stderr = out.read(), err.read()
        if not in_time:
            raise past_deadline(argv[0], deadline_s, stdout + stderr)
        result = command.result(stdout, stderr, time.monotonic() - started)
        if result is None:
            said = command.said_before(stderr)
            raise DeviceError(
                f"lost the device {self.serial} while it ran {argv[0]!r}: {said or 'adb gives no reason'}",
                problem=of_channel(said) or DeviceProblem.LOST,
            )
        return result

    def close(self) -> None:
        """Nothing is held between calls: the server keeps the connection."""

    def _connect(self) -> None:
        """Have the server know the device as usable. A serial with a port is connected to over the network."""
        with self._guard:
            if self._ready:
                return
            state, said = self._state(), ""
            # A device that stays offline after its cable or its host came back is connected anew.
            if state != "device" and ":" in self.serial:
                self._adb("disconnect", self.serial)
                said = f"{self._adb('connect', self.serial)}; "
                state = self._state()
            if state != "device":
                raise DeviceError(
                    f"the device {self.serial} cannot be used: {said}{state}",
                    problem=of_channel(f"{said}{state}") or DeviceProblem.LOST,
                )
            self._ready = True

    def _state(self) -> str:
        return self._adb("-s", self.serial, "get-state").removeprefix("error: ").partition("\n")[0].strip()

    def _adb(self, *arguments: str) -> str:
        """What a command to the server itself says, in the words that matter."""
        with tempfile.TemporaryFile() as said:
            process = self._start(*arguments, out=said, err=said, to_device=False)
            try:
                in_time = _ends_within(min(self.deadline_s, _HOUSEKEEPING_S), process)
            finally:
                _end(process)
            if not in_time:
                raise DeviceError(
                    f"adb does not answer about the device {self.serial}: it hangs", problem=DeviceProblem.HUNG
                )
            said.seek(0)
            text = said.read().decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("* daemon")]
        return "\n".join(lines)

    def _transfer(self, verb: str, source: str, target: str, what: str) -> None:
        self._connect()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = self._start(verb, source, target, out=out, err=err)
            try:
                in_time = _ends_within(self.deadline_s, process)
            finally:
                _end(process)
            if not in_time:
                raise past_deadline(f"adb {verb}", self.deadline_s)
            out.seek(0)
            err.seek(0)
            said = _PROGRESS.sub("", (err.read() + out.read()).decode(errors="replace")).strip()
        if process.returncode != 0:
            raise DeviceError(
                f"cannot {verb} {what} ({self.serial}): {said or 'the device is gone, and adb gives no reason'}",
                problem=of_channel(said) if said else DeviceProblem.LOST,
            )

    def _start(
        self, *arguments: str, out: IO[bytes], err: IO[bytes], stdin: int = subprocess.DEVNULL, to_device: bool = True
    ) -> subprocess.Popen[bytes]:
        program = shutil.which("adb")
        if program is None:
            raise DeviceError("there is no adb on this host: apt install adb, or put Android's platform-tools on PATH")
        host, port = self.server or (None, None)
        server = [*(["-H", host] if host else []), *(["-P", str(port)] if port else [])]
        device = ["-s", self.serial] if to_device else []
        return subprocess.Popen(
            [program, *server, *device, *arguments],
            stdin=stdin,
            stdout=out,
            stderr=err,
            env={name: value for name, value in os.environ.items() if name != "ANDROID_SERIAL"},
            start_new_session=True,  # the server that adb may start must not get the terminal's Ctrl-C
        )


def _feed(process: subprocess.Popen[bytes], script: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # adb has ended: whoever waits for it finds out
        process.stdin.write(script)
        process.stdin.flush()


def _ends_within(deadline_s: float, process: subprocess.Popen[bytes]) -> bool:
    """Wait for its end. `Popen.wait` with a timeout looks every 50 ms: longer than many a command takes."""
    ended = os.pidfd_open(process.pid)
    try:
        waiting = select.poll()
        waiting.register(ended, select.POLLIN)
        return bool(waiting.poll(deadline_s * 1000))
    finally:
        os.close(ended)


def _end(process: subprocess.Popen[bytes], feeder: threading.Thread | None = None) -> None:
    """End adb. The end of its input has the device kill what it runs; only then is adb itself killed."""
    if feeder is not None and not feeder.is_alive() and process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_GRACE_S)
    process.kill()
    process.wait()
    if feeder is not None and process.stdin is not None:
        feeder.join()
        with contextlib.suppress(OSError):
            process.stdin.close()
