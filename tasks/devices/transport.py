"""The three verbs a device must have. The channel raises, the command returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


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
    """Bytes and commands to and from one device. Every method raises DeviceError when the channel fails."""

    def push(self, source: Path, target: str) -> None:
        """Copy a file to the device, whole or not at all: it appears under `target` only when complete."""
        ...

    def pull(self, source: str, target: Path) -> None:
        """Copy a file from the device to `target`, whole or not at all."""
        ...

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline_s: float,
        folder: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run a program, in `folder` if given. At the deadline it is killed with its children: DeviceError."""
        ...
