"""The three verbs a device must have. The channel raises, the command returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tasks.errors import DeadlinePassed


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandResult:
    """What a command that ran to its end left: its own business, whatever it is."""

    argv: tuple[str, ...]
    exit_code: int
    """Negative: ended by that signal."""
    stdout: bytes
    stderr: bytes
    seconds: float


class Transport(Protocol):
    """Bytes and commands to and from one device. Every method raises DeviceError when the channel fails.

    `push` and `pull` have a deadline too: the one that the transport was made with.
    """

    def push(self, source: Path, target: str) -> None:
        """Copy a file or a folder to the device, whole or not at all: `target` appears only when complete.

        A file replaces a file. A folder goes only where nothing is.
        """
        ...

    def pull(self, source: str, target: Path) -> None:
        """Copy a file or a folder from the device to `target`, whole or not at all; else as `push`."""
        ...

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline_s: float,
        folder: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run a program, in `folder` if given. At the deadline it is killed with its children: DeviceError.

        What it leaves running in its own session is killed when it ends, or when this process or the channel dies.
        """
        ...

    def close(self) -> None:
        """Let go of the channel. Never raises."""
        ...


def past_deadline(program: str, deadline_s: float, output: bytes = b"") -> DeadlinePassed:
    return DeadlinePassed(f"{program!r} ran past its deadline of {deadline_s:g} s and was killed", output=output)
