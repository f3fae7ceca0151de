"""Which devices there are, and who holds one now."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conf.schema import DeviceConfig
from tasks.devices.local import LocalTransport
from tasks.devices.transport import CommandResult, Transport


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A device held by one lease: how to talk to it, where to work on it, what its processes need."""

    name: str
    transport: Transport
    work_folder: str
    python: str
    environment: Mapping[str, str]
    deadline_s: float

    def run(self, argv: Sequence[str], *, folder: str | None = None) -> CommandResult:
        """Run a program with the device's environment, under its deadline. Raises DeviceError."""
        return self.transport.run(argv, deadline_s=self.deadline_s, folder=folder, environment=self.environment)


class Farm:
    """Devices by name, each held by one lease at a time. Safe to share between threads."""

    def __init__(self, *, host_environment: Mapping[str, str], folder: Path) -> None:
        """`host_environment`: what a process on this machine needs to find QNN; `folder`: for local devices' work."""
        self._host_environment = dict(host_environment)
        self._folder = folder.absolute()
        self._guard = threading.Lock()
        self._held: dict[str, threading.Lock] = {}

    @contextlib.contextmanager
    def lease(self, config: DeviceConfig) -> Iterator[Device]:
        """The device, for this holder alone, from deploy to collect."""
        with self._guard:
            lock = self._held.setdefault(config.name, threading.Lock())
        with lock:
            yield self._device(config)

    def _device(self, config: DeviceConfig) -> Device:
        return Device(
            name=config.name,
            transport=LocalTransport(),
            work_folder=config.work_folder or str(self._folder / "local"),
            python=config.python or sys.executable,
            environment=self._host_environment | config.environment,
            deadline_s=config.deadline_s,
        )
