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
from qnnsweep.tasks.devices.transport import CommandResult, Fence, RunRequest, lease_lost
from qnnsweep.tasks.devices.triage import of_channel
from qnnsweep.tasks.errors import DeviceError, DeviceProblem

_EXTRA_S = 15
"""The number of seconds from the host's deadline to the watchdog's. The watchdog is needed if the channel hangs."""
_FENCE_S = 5
"""The number of seconds between two looks at the lock."""
_END_BYTES = 200
"""The mark of the end is in this many last bytes of a stream, even if a process of the device prints after it."""

# Descriptor 9 is the channel's input, 8 its stderr. The shell's messages ("Killed") must not mix with the output.
_SCRIPT = """\
exec 9<&0 </dev/null 8>&2 2>/dev/null
say() {{ printf '\\n{token} %s\\n' "$1"; printf '\\n{token} %s\\n' "$1" >&8; }}
{exports}
if ! cd -- {folder}; then say folder; exit; fi
if ! command -v -- {program} >/dev/null; then say program; exit; fi
if ! (eval {fence}); then say fenced; exit; fi
say begin
setsid {command} 2>&8 8>&- 9<&- &
command=$!
setsid sh -c {watch} sh $command <&9 >/dev/null 8>&- 9<&- &
watch=$!
wait $command
code=$?
kill -KILL "-$command"
kill -KILL "-$watch" "$watch"
if ! (eval {fence}); then say fenced; exit; fi
say "end $code"
"""
# $1 is the process of the command, which ends with the channel, after the deadline, or when the lock is lost. The
# process that kills the command then kills the whole watch: later, another process can have the command's number.
_WATCH = """\
end() {{ kill -KILL "-$1" "$1"; kill -KILL "-$$"; }}
(sleep {latest}; end "$1") &
{look}cat
end "$1"
"""
_LOOK = """\
(while sleep {pause}; do (eval {fence}) || end "$1"; done) &
"""
# The holder writes its file in place, so the file can be empty for a moment: the second look decides.
_FENCE = """\
is_held() {{
  read -r held until _ <{holder} && [ "$held" = {token} ] &&
    read -r now _ </proc/uptime && [ "${{now%%.*}}" -lt "$until" ]
}}
is_held || {{ sleep 1; is_held; }}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteCommand:
    """A command for the device's shell. `start` is the command line; `script` is written to the input of `start`."""

    request: RunRequest
    token: str
    start: str
    script: bytes

    @classmethod
    def of(cls, request: RunRequest, fence: Fence | None) -> "RemoteCommand":
        """Return the command that runs a request."""
        is_held, look = "true", ""
        if fence is not None and request.is_fenced:
            is_held = shlex.quote(_FENCE.format(holder=shlex.quote(fence.holder), token=shlex.quote(fence.token)))
            look = _LOOK.format(pause=_FENCE_S, fence=is_held)
        token = f"qnnsweep-{secrets.token_hex(12)}"
        script = _SCRIPT.format(
            token=token,
            exports="\n".join(f"export {name}={shlex.quote(value)}" for name, value in request.environment.items()),
            folder=shlex.quote(request.folder) if request.folder is not None else '"$PWD"',
            program=shlex.quote(request.argv[0]),
            command=shlex.join(request.argv),
            fence=is_held,
            watch=shlex.quote(_WATCH.format(latest=math.ceil(request.deadline_s + _EXTRA_S), look=look)),
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
        if f"\n{self.token} fenced\n".encode() in stderr:
            raise lease_lost(program)
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
