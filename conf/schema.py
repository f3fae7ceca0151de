"""Everything that can be asked for, typed and checked.

Each class is one configuration group; `Request` is one cell's whole configuration. The classes are plain (Hydra
refuses frozen ones) and slotted, so that an unknown key is refused even with `+key=value`. Nobody writes to an
instance after `conf.load` has made it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any

from conf.constraints import (
    above_zero,
    at_least,
    choice,
    decibels,
    dimensions,
    function_path,
    function_path_or,
    host_address,
    host_and_port,
    not_blank,
    notification_block,
    one_of_numbers,
    share,
)
from conf.names import DTYPES, METRICS, OBSERVERS, OPERATOR_REFERENCES

Natural = Annotated[int, at_least(0)]
Count = Annotated[int, at_least(1)]
Positive = Annotated[float, above_zero]
Floor = Annotated[float, at_least(0, "a number, 0 or more")]
Decibels = Annotated[float, decibels]
Function = Annotated[str, function_path]
BlockShape = Annotated[list[int], dimensions("a block's shape, every dimension 1 or more", least_rank=1)]
HostAddress = Annotated[str, host_address]
NotificationBlock = Annotated[str, notification_block]

PROBE = "probe"
"""A device's SoC that is to be read from the device."""


class Precision(Enum):
    """How a scheme computes: in 32-bit float, in 16-bit float, or on quantized integers."""

    float32 = "float32"
    float16 = "float16"
    quantized = "quantized"


class BackendKind(Enum):
    qnn = "qnn"
    xnnpack = "xnnpack"
    portable = "portable"


class TransportKind(Enum):
    local = "local"
    adb = "adb"
    ssh = "ssh"


class RunnerKind(Enum):
    """What runs a program: qnnsweep's own runner in Python, for x86_64 hosts, or ExecuTorch's native one."""

    python = "python"
    native = "native"


class PerformanceMode(Enum):
    """ExecuTorch's QnnExecuTorchHtpPerformanceMode; the numbers are the runner's `--htp_performance_mode`."""

    default = 0
    sustained_high_performance = 1
    burst = 2
    high_performance = 3
    power_saver = 4
    low_power_saver = 5
    high_power_saver = 6
    low_balanced = 7
    balanced = 8


class HostKeys(Enum):
    """Whether a host that known_hosts does not have is refused, or taken down at its first connection."""

    strict = "strict"
    accept_new = "accept_new"


class Reuse(Enum):
    """Which results of earlier runs are taken instead of making them again."""

    programs = "programs"
    """What no device had a part in."""
    capture = "capture"
    """A device's answers too, where the same device was given the same: its times are of that day."""


@dataclass(kw_only=True, slots=True)
class InputConfig:
    name: Annotated[str, not_blank("the argument's name in the module's forward")]
    """The argument's name in the module's `forward`; the order of inputs is the order of this list."""
    shape: Annotated[list[int], dimensions("every dimension is 1 or more")]
    dtype: Annotated[str, choice(DTYPES, "dtype")] = "float32"
    """A torch dtype without its prefix: float32, int32, int64, bool …"""


@dataclass(kw_only=True, slots=True)
class DataConfig:
    source: Function
    """`package.module:function`, called with `count` and `arguments`; yields samples (see docs/models.md)."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    count: Annotated[int, at_least(1, "1 or more samples")] = 8
    """How many samples to take."""


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    name: str
    factory: Function
    """`package.module:function`, any callable that gives a `torch.nn.Module`."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    inputs: list[InputConfig] = field(default_factory=list[InputConfig])
    calibration: DataConfig | None = None
    """Samples the observers see. Needed by every quantized scheme."""
    evaluation: DataConfig | None = None
    """Samples every comparison is made on."""
    classifier: bool = False
    """The largest element of an output is the answer: top-1 agreement and accuracy mean something."""


@dataclass(kw_only=True, slots=True)
class SchemeConfig:
    name: str
    precision: Precision = Precision.quantized
    quant_dtype: str | None = None
    """A member of ExecuTorch's `QuantDtype` without `use_`: 8a8w, 16a4w_block …; null for a float scheme."""
    per_channel_conv: bool = True
    per_channel_linear: bool = True
    per_channel_embedding: bool = False
    observer: Annotated[str, choice(OBSERVERS, "observer")] = "MinMaxObserver"
    """A torchao pt2e observer class for activations. ExecuTorch's own default, MovingAverageMinMaxObserver, depends on
    the order of the samples and forgets the extremes of early ones."""
    activation_symmetric: bool = False
    calibration_samples: Count = 128
    """At most this many of the model's calibration samples."""
    block_size: dict[str, BlockShape] = field(default_factory=dict[str, list[int]])
    """Block quantization only: operator type (`conv2d`, `linear`) to the block's shape."""


@dataclass(kw_only=True, slots=True)
class SocConfig:
    name: str
    arch: Count
    """Hexagon architecture: 75 is v75."""
    vtcm_mib: Count


@dataclass(kw_only=True, slots=True)
class BackendConfig:
    name: str
    kind: BackendKind


@dataclass(kw_only=True, slots=True)
class SshConfig:
    host_keys: HostKeys = HostKeys.strict
    known_hosts: str | None = None
    """Null is `~/.ssh/known_hosts`."""
    key_file: str | None = None
    """A private key; null tries the usual ones in `~/.ssh`."""
    agent: bool = True
    """Ask the ssh-agent for keys."""
    password_variable: str | None = None
    """The environment variable that holds the password: never the password itself."""
    jump: HostAddress | None = None
    """`[user@]host[:port]` of a host to go through; its key is checked in the same way."""
    keep_alive_s: Natural = 15


@dataclass(kw_only=True, slots=True)
class DeviceConfig:
    name: str
    transport: TransportKind = TransportKind.local
    address: str | None = None
    """adb: the serial that `adb devices` shows, or host:port; ssh: `[user@]host[:port]`; null for a local device."""
    adb_server: Annotated[str, host_and_port] | None = None
    """`host:port` of the adb server; null is adb's own default."""
    ssh: SshConfig = field(default_factory=SshConfig)
    soc: str | None = None
    """The SoC it is, or `probe` to read it from the device; null: a simulator host, which takes any SoC's programs."""
    runner: RunnerKind = RunnerKind.python
    work_folder: str | None = None
    """Where blobs and launches are laid out on the device; null is `artifacts/devices/local`, for a local device."""
    python: str | None = None
    """The interpreter that starts the project's runner on the device; null is this one, for a local device."""
    native_folder: str | None = None
    """Runner `native`: the folder of this machine's ExecuTorch build that has `qnn_executor_runner` in it."""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    """Variables of every process there. A value may be a secret: it shows in no list of processes and in no table."""
    tags: list[str] = field(default_factory=list[str])
    """Words of your own, for `qnnsweep devices`."""
    deadline_s: Positive = 600.0
    """Every command on the device, and every transfer, is stopped after this many seconds."""
    below_celsius: float | None = None
    """A launch waits until the hottest sensor of the device is below this; null does not wait."""
    cool_down_s: Positive = 900.0
    """How long a launch waits for that."""
    keep_days: Positive = 14.0
    """What was not used on the device for this long is removed from its work folder."""
    least_free_mib: Natural = 512
    """With less than this free there, everything that the cell does not need is removed from its work folder."""


@dataclass(kw_only=True, slots=True)
class FarmConfig:
    """Devices that share the cells of a sweep. Each cell goes to a free one of its SoC, or to a simulator host."""

    name: str = ""
    devices: list[str] = field(default_factory=list[str])
    """Options of the group `device`."""


@dataclass(kw_only=True, slots=True)
class OperatorTolerance:
    """How far an operator may be from the reference. Both must be exceeded for an error to be its own."""

    snr_db: Decibels | None = None
    """Least SNR, in dB; null asks nothing."""
    steps: Annotated[float, at_least(0, "a number of steps, 0 or more")] | None = None
    """Largest error in steps of the device's grid, where it has one; null leaves it to `snr_db`."""


@dataclass(kw_only=True, slots=True)
class ToleranceConfig:
    """What a cell must reach to pass. A threshold of null asks nothing."""

    name: str
    final_snr_db: dict[str, Decibels] = field(default_factory=dict[str, float])
    """Scheme name to the least SNR, in dB, of any final output of any sample against eager fp32."""
    top1_agreement: dict[str, Annotated[float, share]] = field(default_factory=dict[str, float])
    """Scheme name to the least share of samples whose largest output is at the same index as eager's."""
    operators: dict[str, OperatorTolerance] = field(default_factory=dict[str, OperatorTolerance])
    """`<scheme>/<target>`, `*/<target>`, `<scheme>` or `*` (the first found wins) to what an operator may introduce."""
    introduced_operators: int | None = None
    """At most so many operators may introduce error; null reports them and lets the cell pass."""


@dataclass(kw_only=True, slots=True)
class MeasureConfig:
    performance_mode: PerformanceMode = PerformanceMode.default
    """How fast the HTP's clocks run, as Qualcomm's driver calls it. The simulator has none."""
    warm_up: Natural = 0
    """Inferences before the timed ones, per sample."""
    iterations: Count = 1
    """Timed inferences per sample."""
    operator_samples: Count = 1
    """Evaluation samples for which every operator's tensor is captured and compared."""
    dump_operators: bool = True
    """Build and run the debug program. Off: final outputs only."""
    replay: bool = True
    """Run every operator again on the device's own inputs, to tell introduced from inherited error."""
    references: list[Annotated[str, choice(OPERATOR_REFERENCES, "reference")]] = field(default_factory=lambda: ["edge"])
    """The graphs that operators are compared with: `edge`, which is one in any case and alone tells introduced error;
    `exported`, the float program of torch.export; `quantized`, what pt2e converted."""
    debug_buffer_bytes: Count | None = None
    """Size of the runner's debug buffer; null sizes it from the graph."""
    profile_level: Annotated[int, one_of_numbers(0, 2, 3)] = 0
    """Look at the time inside the delegate, with a third program: 2 logs each operator's cycles, 3 keeps the compiler's
    schematic of the optimized graph too. Off with 0: the shipping program is never slowed down by it."""
    metrics: list[Annotated[str, function_path_or(METRICS)]] = field(default_factory=list[str])
    """More metrics for the table `metrics`: names of `conf.names.METRICS`, or your own as
    `package.module:function`, a function of (actual, reference) or an ExecuTorch NumericalComparatorBase."""


@dataclass(kw_only=True, slots=True)
class LimitsConfig:
    parallel: Count | None = None
    """Toolchain children at once; null is one a core."""
    memory_gib: Positive | None = None
    """What they may have together, by what earlier runs needed: the others wait. Null is 80 % of the machine's."""
    child_deadline_s: Positive = 3600.0
    child_memory_gib: Positive = 16.0
    """A toolchain child above this resident size is stopped and its cell fails."""
    shard_attempts: Count = 3
    """On a work pool: how often a shard of the sweep is tried when its worker dies or fails."""
    silence_s: Annotated[float, at_least(60, "60 or more, two heartbeats of Prefect's")] = 90.0
    """On a work pool: a shard that Prefect has not heard of for so long has crashed. At least two heartbeats
    (PREFECT_FLOWS_HEARTBEAT_FREQUENCY, which prefect.yaml sets to 30 s, Prefect's least)."""


@dataclass(kw_only=True, slots=True)
class ScheduleConfig:
    """When `qnnsweep serve` has the sweep run by itself."""

    cron: str | None = None
    """Five fields: minute, hour, day of the month, month, day of the week; null runs it only when somebody asks."""
    timezone: str = "UTC"
    """Of the cron line, a name of the tz database: Europe/Berlin."""


@dataclass(kw_only=True, slots=True)
class RetentionConfig:
    """Which runs go after one has ended: each that any of the three says. Null keeps all. The newest always stays."""

    keep_runs: Count | None = None
    """At most so many runs."""
    keep_days: Positive | None = None
    """None that ended longer ago."""
    max_gib: Positive | None = None
    """The oldest, until runs, results and blobs have no more than this together."""


@dataclass(kw_only=True, slots=True)
class FloorConfig:
    """The least change of each series of a cell that can be a regression, however little it varies.

    Those in bytes and ms are shares of the baseline: 0.05 is 5 %. With 0 every change for the worse is one.
    """

    passed: Floor = 0.0
    final_snr_db: Floor = 1.0
    final_cosine: Floor = 0.002
    top1_agreement: Floor = 0.01
    accuracy: Floor = 0.01
    observer_effect_snr_db: Floor = 3.0
    coverage: Floor = 0.0
    operators_introduced: Floor = 0.0
    delegated_nodes: Floor = 0.0
    non_delegated_nodes: Floor = 0.0
    pte_bytes: Floor = 0.01
    spill_bytes: Floor = 0.05
    latency_p50_ms: Floor = 0.05
    snr_db: Floor = 3.0
    """Of an operator: the total gap."""
    introduced_snr_db: Floor = 3.0
    """Of an operator."""


@dataclass(kw_only=True, slots=True)
class TrendConfig:
    """When a night is worse than those before it: docs/history.md has the formula."""

    nights: Count = 30
    """At most so many nights are the baseline; a level that is kept as long becomes it. Twice as many are read."""
    least_nights: Count = 10
    """Latency, which has noise of its own, is judged from so many nights on; the other series from the second on."""
    sigmas: Floor = 4.0
    """A change is beyond the noise when it is more than so many of its standard deviations."""
    floors: FloorConfig = field(default_factory=FloorConfig)
    fail: bool = False
    """A regression makes the exit code 1, even if every cell passed."""
    notify: list[NotificationBlock] = field(default_factory=list[str])
    """Who hears of one: notification blocks of Prefect's, `<type>/<name>`, such as custom-webhook/team."""


@dataclass(kw_only=True, slots=True)
class Request:
    """One cell's whole configuration."""

    model: ModelConfig
    scheme: SchemeConfig
    soc: SocConfig
    backend: BackendConfig
    device: DeviceConfig
    tolerance: ToleranceConfig
    farm: FarmConfig = field(default_factory=FarmConfig)
    """Ask for `farm=` instead of `device=`: what is set of `device` then holds for all of its devices."""
    pool: list[DeviceConfig] = field(default_factory=list[DeviceConfig], metadata={"is_key": False})
    """The farm's devices: made from their names when the request is, and not to be asked for."""
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    reuse: Reuse = Reuse.programs
    """`capture` measures nothing that an earlier run measured on the same device; the rows name that run."""
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    trend: TrendConfig = field(default_factory=TrendConfig)
    artifacts: str = "artifacts"
    """Place of the store, the tables and the reports: a folder, or `s3://bucket/prefix`. One for the whole sweep."""
    cache_folder: str | None = None
    """With artifacts=s3://…: this machine's folder for what is used of it, which can be removed at any time when no
    sweep runs. null is one below ~/.cache/qnnsweep, or $XDG_CACHE_HOME/qnnsweep."""

    @property
    def devices(self) -> tuple[DeviceConfig, ...]:
        """Those that the cell may go to."""
        return tuple(self.pool) or (self.device,)

    @property
    def where(self) -> str:
        """What the cell is called by: its farm, or its device."""
        return self.farm.name if self.pool else self.device.name
