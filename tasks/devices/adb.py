"""A channel to a phone over ADB: the host's `adb` program and its server, which may run on another host."""

import contextlib
import errno
import os
import posixpath
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qnnsweep.conf.devices import DeviceConfig
from qnnsweep.tasks.devices.atomic_transfer import pull_atomically, push_atomically, total_size
from qnnsweep.tasks.devices.output import BoundedOutput, ProcessOutput
from qnnsweep.tasks.devices.remote_command import RemoteCommand
from qnnsweep.tasks.devices.transport import CommandResult, Fence, RunRequest, batches, past_deadline
from qnnsweep.tasks.devices.triage import of_channel
from qnnsweep.tasks.errors import DeviceError, DeviceProblem

_GRACE_S = 5.0
_PROGRESS = re.compile(r"\[\s*\d+%\][^\r\n]*[\r\n]*")
_HOUSEKEEPING_S = 60.0
_LOOKS, _LOOK_S = 4, 0.25
"""How often the state of a device is read after a `connect`, and the seconds between."""
_UNEXPECTED_BYTES = 2**20
"""How much more than the announced sizes a pull may store before it is stopped."""


@dataclass(kw_only=True, slots=True)
class AdbTransport:
    """A `Transport` over ADB. `adb` exits with 0 even when the device is lost, so its exit code proves nothing."""

    serial: str
    deadline_s: float
    """The deadline of each transfer."""
    server: tuple[str, int] | None = None
    """Host and port of the adb server; None for adb's default."""
    fence: Fence | None = None
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
        with push_atomically(self, source, target) as arriving:
            self._transfer("push", [str(source.absolute())], arriving, str(source))

    def pull(self, folder: str, sizes: Mapping[str, int], target: Path) -> None:
        with pull_atomically(sizes, target) as arriving:

            def check_size() -> None:
                if total_size(arriving) > sum(sizes.values()) + _UNEXPECTED_BYTES:
                    raise DeviceError(f"cannot pull {folder} to {target} ({self.serial}): it sends more than announced")

            by_parent: dict[str, list[str]] = {}
            for name in sizes:
                by_parent.setdefault(posixpath.dirname(name), []).append(posixpath.join(folder, name))
            for parent, paths in by_parent.items():
                for batch in batches(paths):
                    self._transfer("pull", [*batch], str(arriving.absolute() / parent), folder, check_size)

    def run(self, request: RunRequest) -> CommandResult:
        self._connect()
        command, started = RemoteCommand.of(request, self.fence), time.monotonic()
        shell = ["-s", self.serial, "shell", "-T", "-e", "none", command.start]
        ended = self._adb(*shell, deadline_s=request.deadline_s, program=request.argv[0], script=command.script)
        return command.result(ended.stdout, ended.stderr, time.monotonic() - started, self.serial)

    def close(self) -> None:
        """Do nothing: the adb server keeps the connection, and nothing else is held between calls."""

    def _connect(self) -> None:
        """Check once that the server can use the device. If needed, connect to a device on the network (HOST:PORT)."""
        with self._guard:
            if self._ready:
                return
            state, answer = self._state(), ""
            # A device may stay offline after its cable is plugged in again or its host restarts, so connect it again.
            for is_again in (False, True):
                if state != "device" and ":" in self.serial:
                    if is_again:
                        self._query("disconnect", self.serial)
                    answer = f"{self._query('connect', self.serial)}; "
                    state = self._settled_state()
            if state != "device":
                raise DeviceError(
                    f"the device {self.serial} cannot be used: {answer}{state}",
                    problem=of_channel(f"{answer}{state}") or DeviceProblem.LOST,
                )
            self._ready = True

    def _settled_state(self) -> str:
        """Return the state soon after a `connect`, which another process may have sent, too."""
        for _ in range(_LOOKS):
            if self._state() == "device":
                break
            time.sleep(_LOOK_S)
        return self._state()

    def _state(self) -> str:
        state = self._query("-s", self.serial, "get-state")
        return state.removeprefix("error: ").partition("\n")[0].strip()

    def _query(self, *arguments: str) -> str:
        """Return the output of a command to the adb server, without adb's messages about its daemon."""
        deadline_s = min(self.deadline_s, _HOUSEKEEPING_S)
        ended = self._adb(*arguments, deadline_s=deadline_s, program=" ".join(["adb", *arguments]))
        lines = [
            line.strip() for line in (ended.stdout.bytes() + ended.stderr.bytes()).decode(errors="replace").splitlines()
        ]
        return "\n".join(line for line in lines if line and not line.startswith("* daemon"))

    def _transfer(
        self, verb: str, sources: list[str], target: str, subject: str, check: Callable[[], None] = lambda: None
    ) -> None:
        """Run `adb push` or `adb pull`. `subject`: what is transferred, for the error message."""
        self._connect()
        program = f"adb {verb}"
        ended = self._adb(
            "-s", self.serial, verb, *sources, target, deadline_s=self.deadline_s, program=program, check=check
        )
        if ended.exit_code != 0:
            reason = _PROGRESS.sub("", ended.text).strip()
            problem = of_channel(reason) if reason else DeviceProblem.LOST
            message = (
                f"cannot {verb} {subject} ({self.serial}): {reason or 'the device is gone, and adb gives no reason'}"
            )
            if verb == "pull" and problem is DeviceProblem.FULL:  # a device from which adb reads needs no space
                raise OSError(errno.ENOSPC, message, target)
            raise DeviceError(message, problem=problem)

    def _adb(
        self,
        *arguments: str,
        deadline_s: float,
        program: str,
        script: bytes = b"",
        check: Callable[[], None] = lambda: None,
    ) -> "_Ended":
        """Run adb. Raises DeadlinePassed.

        `program`: the command's name in the error message.
        `script`: written to adb's input, which then stays open until adb has ended.
        `check`: called several times a second; adb is killed if it raises an error.
        """
        adb = shutil.which("adb")
        if adb is None:
            raise DeviceError("there is no adb on this host: apt install adb, or put Android's platform-tools on PATH")
        server = ["-H", self.server[0], "-P", str(self.server[1])] if self.server else []
        process = subprocess.Popen(
            [adb, *server, *arguments],
            stdin=subprocess.PIPE if script else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name != "ANDROID_SERIAL"},
            start_new_session=True,  # adb may start a server, which must not get the terminal's Ctrl-C
        )
        with ProcessOutput.of(process) as output:
            feeder = threading.Thread(target=_feed, args=(process, script), daemon=True)
            feeder.start()
            try:
                in_time = output.read_until_end(deadline_s, check)
            finally:
                _end(process, output, feeder)
        if not in_time:
            raise past_deadline(program, deadline_s, output.stdout.bytes() + output.stderr.bytes())
        return _Ended(exit_code=process.returncode, stdout=output.stdout, stderr=output.stderr)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ended:
    """The result of a program of this machine."""

    exit_code: int
    stdout: BoundedOutput
    stderr: BoundedOutput

    @property
    def text(self) -> str:
        return (self.stderr.bytes() + self.stdout.bytes()).decode(errors="replace")


def _feed(process: subprocess.Popen[bytes], script: bytes) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):  # adb has ended, which `_adb` detects
            process.stdin.write(script)
            process.stdin.flush()


def _end(process: subprocess.Popen[bytes], output: ProcessOutput, feeder: threading.Thread) -> None:
    """End adb. First its input is closed, so that the device kills the command. Then adb itself is killed."""
    if process.stdin is not None and not feeder.is_alive():
        with contextlib.suppress(OSError):
            process.stdin.close()
        if process.poll() is None:
            output.read_until_end(_GRACE_S)
    process.kill()
    process.wait()
    feeder.join()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
