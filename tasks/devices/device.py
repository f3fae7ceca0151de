"""A device held by one lease, and the way to it that its configuration names."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conf.schema import DeviceConfig, RunnerKind, TransportKind
from tasks.devices.adb import AdbTransport
from tasks.devices.local import LocalTransport
from tasks.devices.ssh import SshTransport, address_of
from tasks.devices.transport import CommandResult, Transport
from tasks.storage.partial import owned_name

LEASES, BLOBS, NATIVE = "leases", "blobs", "native"


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A device held by one lease: how to talk to it, where to work on it, what its processes need."""

    name: str
    transport: Transport
    work_folder: str
    lease_folder: str
    """For what this lease alone leaves on the device: gone with all that is in it when the lease ends."""
    runner: RunnerKind = RunnerKind.python
    python: str = ""
    native: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """What the native runner needs beside it, by its name on the device."""
    environment: Mapping[str, str]
    deadline_s: float
    below_celsius: float | None = None
    cool_down_s: float = 900.0
    keep_days: float = 14.0
    least_free_mib: int = 512

    def run(self, argv: Sequence[str], *, folder: str | None = None) -> CommandResult:
        """Run a program with the device's environment, under its deadline. Raises DeviceError."""
        return self.transport.run(argv, deadline_s=self.deadline_s, folder=folder, environment=self.environment)


def batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """An Android shell takes command lines of 128 KiB."""
    for start in range(0, len(names), 500):
        yield names[start : start + 500]


def open_device(
    config: DeviceConfig, *, host_environment: Mapping[str, str], folder: Path, native: Mapping[str, Path]
) -> Device:
    """`host_environment` and `folder` are a local device's: QNN's variables and where it works."""
    local = config.transport is TransportKind.local
    work_folder = config.work_folder or str(folder / "local")
    return Device(
        name=config.name,
        transport=transport_of(config),
        work_folder=work_folder,
        lease_folder=f"{work_folder}/{LEASES}/{owned_name()}",
        runner=config.runner,
        python=config.python or sys.executable,
        native=native,
        environment=(dict(host_environment) if local else {}) | config.environment,
        deadline_s=config.deadline_s,
        below_celsius=config.below_celsius,
        cool_down_s=config.cool_down_s,
        keep_days=config.keep_days,
        least_free_mib=config.least_free_mib,
    )


def transport_of(config: DeviceConfig) -> Transport:
    if config.transport is TransportKind.adb:
        host, _, port = (config.adb_server or "").partition(":")
        return AdbTransport(
            serial=config.address or "",
            server=(host, int(port)) if host else None,
            deadline_s=config.deadline_s,
        )
    if config.transport is TransportKind.ssh:
        user, host, port = address_of(config.address or "")
        return SshTransport(user=user, host=host, port=port, config=config.ssh, deadline_s=config.deadline_s)
    return LocalTransport()


def identity(config: DeviceConfig, folder: Path) -> str:
    """What it is, whatever it is called: two names of one phone are one phone."""
    if config.transport is TransportKind.local:
        return f"local {socket.gethostname()} {config.work_folder or folder / 'local'}"
    if config.transport is TransportKind.adb:
        return f"adb {config.address}"
    _, host, port = address_of(config.address or "")
    return f"ssh {host}:{port} {config.work_folder}"
