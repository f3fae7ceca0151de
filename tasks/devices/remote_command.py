"""A command for the POSIX shell at the far end of a channel.

Quoted once, watched over there, and its end said by itself: a channel that breaks says nothing, and some tools then
exit with 0. The channel's input carries the script, so that no argument or variable shows in a list of processes; it
stays open as long as somebody waits, and its end kills the command on the device.
"""

from __future__ import annotations

import math
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.devices.transport import CommandResult
from tasks.errors import DeviceError, DeviceProblem

_LATER_S = 15
"""How much later than the host's deadline the device's own falls, for when the channel hangs."""

# 9: the channel's input, 8: its stderr. The shell's own remarks ("Killed") must not be taken for the command's.
_SCRIPT = """\
exec 9<&0 </dev/null 8>&2 2>/dev/null
say() {{ printf '\\n{token} %s\\n' "$1"; printf '\\n{token} %s\\n' "$1" >&8; }}
{exports}
if ! cd -- {folder}; then say folder; exit; fi
if ! command -v -- {program} >/dev/null; then say program; exit; fi
say begin
setsid {command} 2>&8 8>&- 9<&- &
command=$!
end='kill -KILL "-$1" "$1"'
setsid sh -c "(sleep {latest}; $end) & cat; $end" sh $command <&9 >/dev/null 8>&- 9<&- &
watch=$!
wait $command
code=$?
kill -KILL "-$command"
kill -KILL "-$watch" "$watch"
say "end $code"
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteCommand:
    """`start` is the command line to give to the device's shell, `script` what to write to its input then."""

    argv: tuple[str, ...]
    folder: str | None
    token: str
    start: str
    script: bytes

    @classmethod
    def of(
        cls, argv: Sequence[str], *, deadline_s: float, folder: str | None, environment: Mapping[str, str] | None
    ) -> RemoteCommand:
        token = f"qnnsweep-{secrets.token_hex(12)}"
        script = _SCRIPT.format(
            token=token,
            exports="\n".join(f"export {name}={shlex.quote(value)}" for name, value in (environment or {}).items()),
            folder=shlex.quote(folder) if folder is not None else '"$PWD"',
            program=shlex.quote(argv[0]),
            command=shlex.join(argv),
            latest=math.ceil(deadline_s + _LATER_S),
        ).encode(errors="surrogateescape")
        start = f'eval "$(head -c {len(script)})"'
        return cls(argv=tuple(argv), folder=folder, token=token, start=start, script=script)

    def ended(self, stdout: bytes | bytearray, stderr: bytes | bytearray) -> bool:
        """Whether both streams have come to their end."""
        return all(self._end(stream) is not None for stream in (stdout, stderr))

    def result(self, stdout: bytes, stderr: bytes, seconds: float) -> CommandResult | None:
        """What the command left; None when the channel did not last until its end.

        Raises DeviceError when it could not be started.
        """
        for word, what, problem in (
            ("folder", self.folder, None),
            ("program", self.argv[0], DeviceProblem.RUNNER_MISSING),
        ):
            if f"\n{self.token} {word}\n".encode() in stderr:
                raise DeviceError(
                    f"cannot start {self.argv[0]!r} on the device: no {word} {what!r} there", problem=problem
                )
        out, err = self._end(stdout), self._end(stderr)
        if out is None or err is None:
            return None
        return CommandResult(
            argv=self.argv,
            exit_code=_exit_code(int(err[2])),
            stdout=out[1],
            stderr=err[1],
            seconds=seconds,
        )

    def said_before(self, stderr: bytes) -> str:
        """What the channel's own program said, besides the command."""
        begin, end = f"\n{self.token} begin\n".encode(), f"\n{self.token} end ".encode()
        before, began, after = stderr.partition(begin)
        tail = after.rpartition(end)[2] if end in after else b""
        return (before + b"\n" + tail if began else stderr).decode(errors="replace").strip()

    def _end(self, stream: bytes | bytearray) -> re.Match[bytes] | None:
        token = self.token.encode()
        # Looked for at the end alone first: this is asked again and again of a growing stream.
        if token + b" end " not in stream[-200:]:
            return None
        return re.search(rb"\n%b begin\n(.*)\n%b end (\d+)\n" % (token, token), stream, re.DOTALL)


def _exit_code(status: int) -> int:
    """A shell reports a signal as 128 and its number."""
    return 128 - status if 128 < status < 128 + 65 else status
