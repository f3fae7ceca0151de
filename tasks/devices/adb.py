"""A channel to a phone over ADB: the host's `adb` program and its server, which may run on another host."""

import contextlib
import os
import re
import select
import shutil
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from conf.schema import DeviceConfig
from tasks.devices.atomic_transfer import pull_atomically, push_atomically
from tasks.devices.remote_command import RemoteCommand
from tasks.devices.transport import CommandResult, RunRequest, past_deadline
from tasks.devices.triage import of_channel
from tasks.errors import DeviceError, DeviceProblem

_GRACE_S = 5.0
_PROGRESS = re.compile(r"\[\s*\d+%\][^\r\n]*[\r\n]*")
_HOUSEKEEPING_S = 60.0


@dataclass(kw_only=True, slots=True)
class AdbTransport:
    """A `Transport` over ADB. `adb` exits with 0 even when the device is lost, so its exit code proves nothing."""

    serial: str
    deadline_s: float
    """The deadline of each transfer."""
    server: tuple[str, int] | None = None
    """Host and port of the adb server; None for adb's default."""
    _ready: bool = False
    _guard: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, config: DeviceConfig) -> "AdbTransport":
        host, _, port = (config.adb_server or "").partition(":")
        server = (host, int(port)) if host else None
        return cls(serial=config.address or "", server=server, deadline_s=config.deadline_s)

    @classmethod
    def identity(cls, config: DeviceConfig, _folder: Path) -> str:
        return f"adb {config.address}"

    def push(self, source: Path, target: str) -> None:
        def transfer(arriving: str) -> None:
            self._transfer("push", str(source.absolute()), arriving, f"{source} to {target}")

        push_atomically(self, source, target, transfer)

    def pull(self, source: str, target: Path) -> None:
        def transfer(fresh: Path) -> None:
            self._transfer("pull", source, str(fresh.absolute()), f"{source} to {target}")

        pull_atomically(source, target, transfer)

    def run(self, request: RunRequest) -> CommandResult:
        self._connect()
        command, program = RemoteCommand.of(request), request.argv[0]
        started = time.monotonic()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = self._start("shell", "-T", "-e", "none", command.start, stdin=subprocess.PIPE, out=out, err=err)
            feeder = threading.Thread(target=_feed, args=(process, command.script), daemon=True)
            feeder.start()
            try:
                in_time = _ends_within(request.deadline_s, process)
            finally:
                _end(process, feeder)
            out.seek(0)
            err.seek(0)
            stdout, stderr = out.read(), err.read()
        if not in_time:
            raise past_deadline(program, request.deadline_s, stdout + stderr)
        result = command.result(stdout, stderr, time.monotonic() - started)
        if result is None:
            reason = command.channel_output(stderr)
            raise DeviceError(
                f"lost the device {self.serial} while it ran {program!r}: {reason or 'adb gives no reason'}",
                problem=of_channel(reason) or DeviceProblem.LOST,
            )
        return result

    def close(self) -> None:
        """Do nothing: the server keeps the connection, and nothing else is held between calls."""

    def _connect(self) -> None:
        """Check once that the server can use the device. A serial with a port is first connected over the network."""
        with self._guard:
            if self._ready:
                return
            state, answer = self._state(), ""
            # A device may stay offline after its cable or its host came back, so it is connected again.
            if state != "device" and ":" in self.serial:
                self._adb("disconnect", self.serial)
                answer = f"{self._adb('connect', self.serial)}; "
                state = self._state()
            if state != "device":
                raise DeviceError(
                    f"the device {self.serial} cannot be used: {answer}{state}",
                    problem=of_channel(f"{answer}{state}") or DeviceProblem.LOST,
                )
            self._ready = True

    def _state(self) -> str:
        return self._adb("-s", self.serial, "get-state").removeprefix("error: ").partition("\n")[0].strip()

    def _adb(self, *arguments: str) -> str:
        """Return what a command to the server itself prints, without the remarks about its daemon."""
        with tempfile.TemporaryFile() as output:
            process = self._start(*arguments, out=output, err=output, to_device=False)
            try:
                in_time = _ends_within(min(self.deadline_s, _HOUSEKEEPING_S), process)
            finally:
                _end(process)
            if not in_time:
                raise DeviceError(
                    f"adb gives no answer about the device {self.serial}: it hangs", problem=DeviceProblem.HUNG
                )
            output.seek(0)
            text = output.read().decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("* daemon")]
        return "\n".join(lines)

    def _transfer(self, verb: str, source: str, target: str, purpose: str) -> None:
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
            reason = _PROGRESS.sub("", (err.read() + out.read()).decode(errors="replace")).strip()
        if process.returncode != 0:
            raise DeviceError(
                f"cannot {verb} {purpose} ({self.serial}): {reason or 'the device is gone, and adb gives no reason'}",
                problem=of_channel(reason) if reason else DeviceProblem.LOST,
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
            start_new_session=True,  # adb may start a server, which must not get the terminal's Ctrl-C
        )


def _feed(process: subprocess.Popen[bytes], script: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # adb has ended, which `run` detects
        process.stdin.write(script)
        process.stdin.flush()


def _ends_within(deadline_s: float, process: subprocess.Popen[bytes]) -> bool:
    """Return whether the process ends in time. `Popen.wait` polls every 50 ms, longer than many commands take."""
    descriptor = os.pidfd_open(process.pid)
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(deadline_s * 1000))
    finally:
        os.close(descriptor)


def _end(process: subprocess.Popen[bytes], feeder: threading.Thread | None = None) -> None:
    """End adb. The end of its input makes the device kill the command; only then is adb itself killed."""
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
