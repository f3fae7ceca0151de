"""A command for the POSIX shell at the far end of a channel.

The command line is quoted once. A watchdog on the device limits the command's time. A printed token marks the
command's end, because some tools exit with 0 and report no error when the channel breaks. The script is sent through
the channel's input, so that no argument or variable appears in a list of processes. The input stays open while the
caller waits. When the input is closed, the watchdog kills the command.
"""

import math
import re
import secrets
import shlex
from dataclasses import dataclass

from qnnsweep.tasks.devices.output import BoundedOutput
from qnnsweep.tasks.devices.transport import CommandResult, RunRequest
from qnnsweep.tasks.devices.triage import of_channel
from qnnsweep.tasks.errors import DeviceError, DeviceProblem

_EXTRA_S = 15
"""The number of seconds from the host's deadline to the watchdog's. The watchdog is needed if the channel hangs."""
_END_BYTES = 200
"""The mark of the end is in this many last bytes of a stream, even if a process of the device prints after it."""

# Descriptor 9 is the channel's input, 8 its stderr. The shell's messages ("Killed") must not mix with the output.
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
    """A command for the device's shell. `start` is the command line; `script` is written to the input of `start`."""

    request: RunRequest
    token: str
    start: str
    script: bytes

    @classmethod
    def of(cls, request: RunRequest) -> "RemoteCommand":
        """Return the command that runs a request."""
        token = f"qnnsweep-{secrets.token_hex(12)}"
        script = _SCRIPT.format(
            token=token,
            exports="\n".join(f"export {name}={shlex.quote(value)}" for name, value in request.environment.items()),
            folder=shlex.quote(request.folder) if request.folder is not None else '"$PWD"',
            program=shlex.quote(request.argv[0]),
            command=shlex.join(request.argv),
            latest=math.ceil(request.deadline_s + _EXTRA_S),
        ).encode(errors="surrogateescape")
        start = f'eval "$(head -c {len(script)})"'
        return cls(request=request, token=token, start=start, script=script)

    def ended(self, *streams: BoundedOutput) -> bool:
        """Return whether all streams contain the token that marks the command's end."""
        end = re.compile(rb"\n%b end [0-9]{1,3}\n" % self.token.encode())
        return all(end.search(stream.end(_END_BYTES)) for stream in streams)

    def result(self, out: BoundedOutput, err: BoundedOutput, seconds: float, device: str) -> CommandResult:
        """Return the command's result. Raises DeviceError if the command could not be started or the channel broke.

        `device`: the device's name in the error message.
        """
        program = self.request.argv[0]
        stderr = err.bytes()
        for word, value in (("folder", self.request.folder), ("program", program)):
            if f"\n{self.token} {word}\n".encode() in stderr:
                problem = DeviceProblem.RUNNER_MISSING if word == "program" else None
                raise DeviceError(f"cannot start {program!r} on the device: no {word} {value!r} there", problem=problem)
        printed, errors = self._between(out.bytes()), self._between(stderr)
        if printed is None or errors is None:
            reason = self._channel_output(stderr)
            raise DeviceError(
                f"lost the device {device} while it ran {program!r}: {reason or 'the connection ended'}",
                problem=of_channel(reason) or DeviceProblem.LOST,
            )
        status = int(errors[2])
        return CommandResult(
            argv=tuple(self.request.argv),
            exit_code=128 - status if 128 < status < 128 + 65 else status,  # a shell reports signal N as 128 + N
            stdout=printed[1],
            stderr=errors[1],
            seconds=seconds,
            dropped_bytes=out.dropped_bytes + err.dropped_bytes,
        )

    def _channel_output(self, stderr: bytes) -> str:
        """Return the part of `stderr` that the channel's own program wrote, without the output of the command."""
        begin, end = f"\n{self.token} begin\n".encode(), f"\n{self.token} end ".encode()
        before, began, after = stderr.partition(begin)
        tail = after.rpartition(end)[2] if end in after else b""
        return (before + b"\n" + tail if began else stderr).decode(errors="replace").strip()

    def _between(self, stream: bytes) -> re.Match[bytes] | None:
        """Match the output of the command and its status, which are between the token of the begin and of the end."""
        token = self.token.encode()
        return re.search(rb"\n%b begin\n(.*)\n%b end ([0-9]{1,3})\n" % (token, token), stream, re.DOTALL)
