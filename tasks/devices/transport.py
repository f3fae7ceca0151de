"""The contract of a channel to a device: push, pull, run.

If the channel fails, an error is raised. If a command fails, its result is returned.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Protocol

from qnnsweep.conf.devices import DeviceConfig
from qnnsweep.tasks.devices.triage import of_channel
from qnnsweep.tasks.errors import DeadlinePassed, DeviceError, LeaseLost


@dataclass(frozen=True, kw_only=True, slots=True)
class Fence:
    """What stops the commands of a holder that lost the lock of the device, for example because its host slept."""

    holder: str
    """The path of the file on the device that has the holder's name and the end of its lease, see `devices.lock`."""
    token: str
    """The name of the holder whose commands may run."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A program to run on a device."""

    argv: Sequence[str]
    _: KW_ONLY
    deadline_s: float
    """After this time, the program and its children are killed, and DeadlinePassed is raised."""
    folder: str | None = None
    """The working directory. None means the channel's default directory."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables in addition to those that the device sets."""
    is_fenced: bool = True
    """Whether the command needs the lock of the device, if the transport has a fence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandResult:
    """The result of a command that has ended. A failed command has a result too."""

    argv: tuple[str, ...]
    exit_code: int
    """The command's exit code, or minus the signal's number if a signal ended the command."""
    stdout: bytes
    stderr: bytes
    seconds: float
    dropped_bytes: int = 0
    """How much of the output was dropped: all that a stream has beyond `qnnsweep.tasks.devices.output.LIMIT_BYTES`."""


class Transport(Protocol):
    """A channel for bytes and commands to one device. When it fails, every method but `close` raises DeviceError.

    The configuration selects a transport: see `qnnsweep.tasks.devices.device.transport_of`. The deadline of `push` and
    `pull` is also part of the configuration.
    """

    fence: Fence | None
    """While it is set, `run` raises LeaseLost, and stops its command, if the lock of the device is lost."""

    @classmethod
    def of(cls, config: DeviceConfig, /) -> "Transport":
        """Return the channel that the configuration describes, not yet connected."""
        ...

    @classmethod
    def identity(cls, config: DeviceConfig, folder: Path, /) -> str:
        """Return text that names the device: two names of one device may differ. `folder`: where local devices work."""
        ...

    def push(self, source: Path, target: str) -> None:
        """Copy a file or a folder to the device atomically: `target` appears only when it is complete.

        A file replaces a file. A folder never replaces anything.
        """
        ...

    def pull(self, folder: str, sizes: Mapping[str, int], target: Path) -> None:
        """Copy files of a folder of the device to the new folder `target` on this machine, atomically.

        Nothing but these files is written, whatever the device sends.
        `sizes`: the paths of the files, relative to `folder`, and the size of each file in bytes. A file of another
        size is an error.
        """
        ...

    def run(self, request: RunRequest) -> CommandResult:
        """Run a program and wait for its end.

        When the program, this process or the channel ends, processes that the program left in its session are killed.
        """
        ...

    def close(self) -> None:
        """Close the channel. Never raises."""
        ...


def batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the names in parts. Each part fits into one command line, which in an Android shell is at most 128 KiB."""
    for start in range(0, len(names), 500):
        yield names[start : start + 500]


def lease_lost(program: str) -> LeaseLost:
    """Return the error for a command that the fence stopped."""
    return LeaseLost(
        f"the lock of the device was lost before {program!r} ended: this process did not renew it in time, for example "
        "because its machine slept"
    )


def past_deadline(program: str, deadline_s: float, output: bytes = b"") -> DeadlinePassed:
    """Return the error for a program or a transfer killed at its deadline. `output`: what was printed until then."""
    return DeadlinePassed(f"{program!r} ran past its deadline of {deadline_s:g} s and was killed", output=output)


def require_success(result: CommandResult, failure: str) -> CommandResult:
    """Return the result if the command succeeded. Otherwise raise DeviceError with `failure` and the reason."""
    if result.exit_code != 0:
        reason = result.stderr.decode(errors="replace").strip()
        raise DeviceError(f"{failure}: {reason or f'exit code {result.exit_code}'}", problem=of_channel(reason))
    return result
