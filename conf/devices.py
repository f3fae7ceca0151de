"""The configuration of devices, of the ways to them, and of farms."""

from dataclasses import dataclass, field
from enum import Enum

from qnnsweep.conf.constraints import Celsius, HostAddress, HostAndPort, Natural, Positive

PROBE = "probe"
"""The value of `device.soc` that makes qnnsweep read the SoC from the device."""

HOSTED = "aihub"
"""The option of the group `device` for a device of Qualcomm AI Hub, which nobody has without an account."""


class TransportKind(Enum):
    local = "local"
    adb = "adb"
    ssh = "ssh"


class RunnerKind(Enum):
    """The program that executes a cell: qnnsweep's Python runner with ExecuTorch (for x86_64 hosts), with ONNX Runtime
    (for a machine with the package onnxruntime-qnn) or with jobs of Qualcomm AI Hub, or ExecuTorch's native runner."""

    python = "python"
    native = "native"
    onnxruntime = "onnxruntime"
    aihub = "aihub"

    @property
    def divides(self) -> bool:
        """Whether the runner executes the parts of a program: its context binaries, and the operators between them."""
        return self in (RunnerKind.onnxruntime, RunnerKind.aihub)


class HostKeys(Enum):
    """The treatment of a host that is not in known_hosts: reject it, or record its key at the first connection."""

    strict = "strict"
    accept_new = "accept_new"


@dataclass(kw_only=True, slots=True)
class SshConfig:
    host_keys: HostKeys = HostKeys.strict
    known_hosts: str | None = None
    """The path of the known_hosts file; null is `~/.ssh/known_hosts`."""
    key_file: str | None = None
    """The path of a private key. With null, the usual key files in `~/.ssh` are tried."""
    agent: bool = True
    """Whether to use the keys of the ssh-agent."""
    password_variable: str | None = None
    """The name of the environment variable that holds the password, never the password itself."""
    jump: HostAddress | None = None
    """`[user@]host[:port]` of a jump host. Its key is checked in the same way as the device's key."""
    jump_password_variable: str | None = None
    """The name of the environment variable that holds the password for the jump host. The jump host never gets the
    device's password."""
    keep_alive_s: Natural = 15


@dataclass(kw_only=True, slots=True)
class LeaseConfig:
    """Commands of your own that hire a device from a farm. Each is a list of words, which no shell interprets.

    All get the variables QNNSWEEP_LEASE_NAME (another name for each hire), QNNSWEEP_SOC, and QNNSWEEP_LEASE (the line
    that `acquire` has printed; empty if it has printed none)."""

    acquire: list[str] = field(default_factory=list[str])
    """Hires a device. Its last line is JSON with the endpoint: {"ssh": "[user@]host[:port]"}, or {"serial": "1a2b3c",
    "adb_server": "host:port"}. An empty list: the device is not hired."""
    extend: list[str] = field(default_factory=list[str])
    """Extends the hire."""
    release: list[str] = field(default_factory=list[str])
    """Gives the device back. It also runs after an `acquire` that failed or was ended, and may run twice."""
    acquire_s: Positive = 900.0
    """The number of seconds after which `acquire` is ended."""
    release_s: Positive = 20.0
    """The number of seconds after which `release` or `extend` is ended."""
    extend_every_s: Positive = 300.0
    """The number of seconds between two calls of `extend`."""
    idle_s: Positive = 30.0
    """A device that no cell has used for this many seconds is given back. The next cell hires one again."""
    minutes: Positive | None = None
    """The budget of a run: a hire ends when it is used up, and no further one begins."""


@dataclass(kw_only=True, slots=True)
class AiHubConfig:
    """A hosted device, for `runner=aihub`. The account's token is in the configuration file of AI Hub's client."""

    device: str | None = None
    """The device's name, such as `Samsung Galaxy S24 (Family)`; `qai-hub list-devices` prints all names."""
    os: str = ""
    """The version of the device's operating system; empty for any."""
    options: str = ""
    """Options of every job, such as `--qairt_version 2.49`."""


@dataclass(kw_only=True, slots=True)
class DeviceConfig:
    name: str
    transport: TransportKind = TransportKind.local
    address: str | None = None
    """For adb, the serial that `adb devices` shows, or host:port. For ssh, `[user@]host[:port]`. For local, null."""
    adb_server: HostAndPort | None = None
    """`host:port` of the adb server; null is adb's default server."""
    ssh: SshConfig = field(default_factory=SshConfig)
    soc: str | None = None
    """The device's SoC. `probe` means: read it from the device. null means a simulator host, for any SoC's programs."""
    runner: RunnerKind = RunnerKind.python
    work_folder: str | None = None
    """The folder on the device for blobs and launches. For a local device, null is `artifacts/devices/local`,
    and with runner=aihub a folder of the hosted device in `artifacts/devices`."""
    lock_folder: str | None = None
    """The folder on the device for its lock. null: the same folder for all work folders of a phone or a board
    (/data/local/tmp, /run/lock or /tmp), and the work folder of a local device. Name one only for a host that shall run
    several cells at a time, as several devices."""
    python: str | None = None
    """The Python interpreter that starts qnnsweep's runner on the device. For a local device, null is the interpreter
    of this process. For runner=aihub, the Python of this machine that has the package qai-hub."""
    native_folder: str | None = None
    """For the native runner: the folder of an ExecuTorch build on this machine. It contains `qnn_executor_runner`."""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    """Environment variables for processes on the device. Values can be secret: no process list or table shows them.
    In an override, write a secret as ${oc.env:VARIABLE}; see `masked_names`."""
    lease: LeaseConfig = field(default_factory=LeaseConfig)
    aihub: AiHubConfig = field(default_factory=AiHubConfig)
    tags: list[str] = field(default_factory=list[str])
    """Labels of your choice, which `qnnsweep devices` shows."""
    deadline_s: Positive = 600.0
    """The number of seconds after which a command on the device or a file transfer is stopped."""
    below_celsius: Celsius | None = None
    """A launch waits until the hottest sensor of the device is below this temperature. With null, no launch waits."""
    cool_down_s: Positive = 900.0
    """The maximum number of seconds that a launch waits for the temperature `below_celsius`."""
    keep_days: Positive = 14.0
    """Files that were not used for this many days are removed from the device's work folder."""
    least_free_mib: Natural = 512
    """The free space, in MiB, that a transfer must leave on the device. If a transfer would leave less, all files in
    the device's work folder that the cell does not need are removed first."""


@dataclass(kw_only=True, slots=True)
class FarmConfig:
    """Devices that share a sweep's cells. A cell goes to a free device with the cell's SoC, or to a simulator host."""

    name: str = ""
    devices: list[str] = field(default_factory=list[str])
    """The names of options of the group `device`."""
