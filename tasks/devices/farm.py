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
from tasks.errors import DeviceError
from tasks.storage.partial import is_abandoned, owned_name

LEASES = "leases"


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A device held by one lease: how to talk to it, where to work on it, what its processes need."""

    name: str
    transport: Transport
    work_folder: str
    lease_folder: str
    """For what this lease alone leaves on the device: gone with all that is in it when the lease ends."""
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
            device = self._device(config)
            _remove(device, _abandoned(device))
            try:
                yield device
            finally:
                # A lost channel has been reported by whoever used it; a later lease removes what stays now.
                with contextlib.suppress(DeviceError):
                    _remove(device, [device.lease_folder])

    def _device(self, config: DeviceConfig) -> Device:
        work_folder = config.work_folder or str(self._folder / "local")
        return Device(
            name=config.name,
            transport=LocalTransport(),
            work_folder=work_folder,
            lease_folder=f"{work_folder}/{LEASES}/{owned_name()}",
            python=config.python or sys.executable,
            environment=self._host_environment | config.environment,
            deadline_s=config.deadline_s,
        )


def _abandoned(device: Device) -> list[str]:
    """Folders of leases that were held by killed processes of this host."""
    leases = f"{device.work_folder}/{LEASES}"
    listed = device.run(["ls", "-1", leases])  # fails where there never was one
    return [f"{leases}/{name}" for name in listed.stdout.decode().splitlines() if is_abandoned(name)]


def _remove(device: Device, folders: Sequence[str]) -> None:
    if folders:
        device.run(["rm", "-rf", *folders])
