"""A device that one lease holds. A device's configuration selects its transport."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qnnsweep.conf.devices import DeviceConfig, RunnerKind, TransportKind
from qnnsweep.tasks.devices.adb import AdbTransport
from qnnsweep.tasks.devices.local import LocalTransport, StartSupervisor, local_folder
from qnnsweep.tasks.devices.transport import CommandResult, RunRequest, Transport
from qnnsweep.tasks.records import Command
from qnnsweep.tasks.storage.atomic import temporary_name

LEASES, BLOBS = "leases", "blobs"
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_CLIENT_FILES = ("QAIHUB_CLIENT_INI", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")


def transport_of(kind: TransportKind) -> type[Transport]:
    """Return the transport of a kind. That over SSH is imported late, because paramiko takes a while to import."""
    match kind:
        case TransportKind.local:
            return LocalTransport
        case TransportKind.adb:
            return AdbTransport
        case TransportKind.ssh:
            from qnnsweep.tasks.devices.ssh import SshTransport

            return SshTransport


@dataclass(frozen=True, kw_only=True, slots=True)
class Hire:
    """The hire of a device from a farm. `began`: on the monotonic clock, when the farm was asked."""

    name: str
    began: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A device that is held by one lease: its configuration, the channel to it, and its folders and files."""

    name: str
    config: DeviceConfig
    transport: Transport
    work_folder: str
    lease_folder: str
    """The folder that only this lease uses. It is removed when the lease ends."""
    python: str
    native: Mapping[str, Path]
    """The native runner's files: their names on the device, mapped to their paths on this machine."""
    environment: Mapping[str, str]
    device_id: str | None = None
    """The digest of the serial number that the device reports."""
    hire: Hire | None = None
    """None if the device is not hired."""

    def run(self, argv: Sequence[str], *, folder: str | None = None) -> CommandResult:
        """Run a program with the device's environment and deadline. Raises DeviceError."""
        deadline_s = self.config.deadline_s
        return self.transport.run(RunRequest(argv, deadline_s=deadline_s, folder=folder, environment=self.environment))

    def ended(self, argv: Sequence[str], exit_code: int, seconds: float, *, host_rounds: int = 0) -> Command:
        """Return the record of a command that has ended now. The arguments are those of `Command`."""
        name, hired_s = (None, None) if self.hire is None else (self.hire.name, time.monotonic() - self.hire.began)
        return Command(
            argv=tuple(argv), exit_code=exit_code, seconds=seconds, host_rounds=host_rounds, hire=name, hired_s=hired_s
        )


def with_onnxruntime(device: Device) -> Device:
    """Return the device of the same lease whose programs run in ONNX Runtime."""
    config = replace(device.config, runner=RunnerKind.onnxruntime)
    is_local = isinstance(device.transport, LocalTransport)
    transport = LocalTransport(fence=device.transport.fence) if is_local else device.transport
    return replace(device, config=config, transport=transport)


def _python(config: DeviceConfig) -> str:
    """Return the interpreter of a Python runner. A `~` is the home folder of this machine, if the runner is here."""
    python = config.python or sys.executable
    return str(Path(python).expanduser()) if config.runner is RunnerKind.aihub else python


def _of_client(config: DeviceConfig) -> dict[str, str]:
    """Return the variables of this process that tell the client of Qualcomm AI Hub how to reach it."""
    if config.runner is not RunnerKind.aihub:
        return {}
    files = {name: str(Path(os.environ[name]).expanduser().absolute()) for name in _CLIENT_FILES if name in os.environ}
    return files | {name: os.environ[name] for name in _PROXIES if name in os.environ}


def open_device(
    config: DeviceConfig,
    *,
    host_environment: Mapping[str, str],
    folder: Path,
    native: Mapping[str, Path],
    fork: StartSupervisor | None = None,
) -> Device:
    """Return the device that `config` describes, for a new lease. The first command opens the channel to the device.

    `host_environment` (the variables that QNN needs), `folder` and `fork` are used only for local devices.
    `fork`: see `LocalTransport`. Its process has the interpreter of this process and the variables `host_environment`.
    """
    is_local = config.transport is TransportKind.local
    host_environment = host_environment if is_local else {}
    can_fork = is_local and config.runner is RunnerKind.python and config.python in (None, sys.executable)
    can_fork = can_fork and not config.environment
    work_folder = local_folder(config, folder)
    return Device(
        name=config.name,
        config=config,
        transport=LocalTransport(fork) if can_fork else transport_of(config.transport).of(config),
        work_folder=work_folder,
        lease_folder=f"{work_folder}/{LEASES}/{temporary_name()}",
        python=_python(config),
        native=native,
        environment=_of_client(config) | dict(host_environment) | config.environment,
    )
