"""The schema of a request: every configuration key with its type, its constraint and its default.

Each class is one configuration group; `Request` is one cell's whole configuration. The classes are not frozen, because
Hydra refuses frozen dataclasses. They have slots, so that an unknown key is refused even with `+key=value`. No code
changes an instance after `qnnsweep.conf.load` has returned it.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from annotated_types import Interval

from qnnsweep.conf.constraints import (
    Bytes,
    Count,
    Cron,
    Natural,
    NonNegative,
    NotificationBlock,
    Positive,
    RegularExpression,
    Share,
    choice,
    function_path_or,
    one_of_numbers,
)
from qnnsweep.conf.devices import DeviceConfig, FarmConfig
from qnnsweep.conf.models import ModelConfig
from qnnsweep.conf.names import ENDS_TO_FAIL_ON, MASKED_NAMES, METRICS, OPERATOR_REFERENCES, SHIPPED_BACKENDS
from qnnsweep.conf.repair import BudgetConfig, CertificateConfig, TargetConfig
from qnnsweep.conf.schemes import ChangeConfig, Precision, SchemeConfig
from qnnsweep.conf.tolerances import ToleranceConfig
from qnnsweep.conf.toolchains import ToolchainConfig


class PerformanceMode(Enum):
    """The modes of ExecuTorch's QnnExecuTorchHtpPerformanceMode, as numbers for the flag `--htp_performance_mode`."""

    default = 0
    sustained_high_performance = 1
    burst = 2
    high_performance = 3
    power_saver = 4
    low_power_saver = 5
    high_power_saver = 6
    low_balanced = 7
    balanced = 8


class Reuse(Enum):
    """The results of earlier runs that are reused instead of being computed again."""

    programs = "programs"
    """Only results to which no device contributed."""
    capture = "capture"
    """Also measurements, with their times, that an earlier run made of the same program on the same device."""


@dataclass(kw_only=True, slots=True)
class SocConfig:
    name: str
    arch: Count
    """The number of the Hexagon architecture: 75 means v75."""
    vtcm_mib: Count


@dataclass(kw_only=True, slots=True)
class BackendConfig:
    name: str
    kind: Annotated[str, function_path_or(tuple(SHIPPED_BACKENDS), "Class")]
    """`qnn`, `xnnpack` or `portable`, or `package.module:Class` for a backend of another vendor."""


@dataclass(kw_only=True, slots=True)
class MeasureConfig:
    performance_mode: PerformanceMode = PerformanceMode.default
    """The performance mode of Qualcomm's driver. It sets the HTP's clock rates. The simulator has no clock rates."""
    warm_up: Natural = 0
    """The number of inferences before the timed ones, per sample."""
    iterations: Count = 1
    """The number of timed inferences per sample."""
    operator_samples: Count = 4
    """The number of evaluation samples for which every operator's tensor is captured and compared: the worst one and
    the median by the host's prediction, and others between the two. If the device's worst sample is another one, it is
    captured too. ExecuTorch's Inspector can read the debug program's log only with 1."""
    dump_operators: bool = True
    """Whether to build and run the debug program. Without this program only final outputs are compared."""
    debug_programs: Count = 8
    """The most debug programs per method. If the debug program does not run, or if its final outputs are not those of
    the shipping program, its operators are divided among several programs. With 1, they are not."""
    replay: bool = True
    """Whether to run every operator again on the device's inputs. This separates introduced from inherited error."""
    budget: bool = True
    """Whether to compute which operator, and which of its causes, has which share of the final outputs' error. This
    needs `replay`."""
    cures: Natural = 3
    """How many changes of the scheme are tried at most, on the host, all samples and the compiler included, until one
    helps, which is printed as the next step. With 0, none is printed."""
    references: list[Annotated[str, choice(OPERATOR_REFERENCES, "reference")]] = field(default_factory=lambda: ["edge"])
    """The graphs that operators are compared with. `edge` is always used, and only `edge` shows introduced error.
    `exported` is the float program of torch.export. `quantized` is the graph after the conversion by pt2e."""
    debug_buffer_bytes: Bytes | None = None
    """The size of the runner's debug buffer. With null, the size is derived from the graph."""
    profile_level: Annotated[int, one_of_numbers(0, 2, 3)] = 0
    """ExecuTorch's level of profiling inside the delegate. A separate program is profiled, so that the shipping
    program is not slowed down. 0 is off. 2 logs each operator's cycles. 3 also stores the compiler's schematic of the
    optimized graph. 1 is not accepted, because ExecuTorch treats it as off."""
    second_runtime: bool = False
    """Whether a device with ExecuTorch's Python runner executes the programs in ONNX Runtime, too. Every tensor must be
    equal byte by byte. A difference fails the cell: it is a fault of a runtime, and of no operator."""
    metrics: list[Annotated[str, function_path_or(METRICS)]] = field(default_factory=list[str])
    """The metrics of the table `metrics`: names of `qnnsweep.conf.names.METRICS`, or `package.module:function` for a
    metric of your own. Such a metric is a function of (actual, reference) or an ExecuTorch NumericalComparatorBase. If
    the function has a parameter `label`, it gets the sample's label, and is computed for final outputs only."""


@dataclass(kw_only=True, slots=True)
class LimitsConfig:
    """The limits of the toolchain's workers. The log of a worker has a fixed limit: its first and last 4 MiB."""

    parallel: Count | None = None
    """The maximum number of toolchain workers that run at the same time. null means one worker per core."""
    memory_gib: Positive | None = None
    """The memory that all workers together may use. A toolchain call waits until its memory, estimated from earlier
    runs, fits within this limit. null means 80 % of the machine's memory."""
    new_cases: Natural | None = None
    """The maximum number of operator cases that a run tries, of the models that are collections (`model.cases`). Cases
    with cached results are not counted. A nightly sweep with this limit measures an atlas in parts. null means all."""
    child_deadline_s: Positive = 3600.0
    child_memory_gib: Positive = 16.0
    """The maximum memory of a toolchain worker and all processes that it started. A larger worker is stopped, and its
    cell fails. Pages that several processes share count once."""
    shard_attempts: Count = 3
    """On a work pool: the maximum number of runs of a shard. The shard is run again if its worker dies or fails."""
    silence_s: Annotated[float, Interval(ge=60)] = 90.0
    """On a work pool: a shard is marked as crashed after this number of seconds without a heartbeat, at least two
    intervals. prefect.yaml sets PREFECT_FLOWS_HEARTBEAT_FREQUENCY to 30 s, which is Prefect's minimum."""


@dataclass(kw_only=True, slots=True)
class ObjectStoreConfig:
    """The requests to an object store, with artifacts=s3://…"""

    timeout_s: Positive = 60.0
    """The number of seconds that a request waits for an answer."""
    attempts: Count = 10
    """The maximum number of attempts of a request that fails for a reason that can pass, such as SLOW_DOWN."""


@dataclass(kw_only=True, slots=True)
class ScheduleConfig:
    """The schedule on which `qnnsweep serve` runs the sweep."""

    cron: Cron | None = None
    """Five fields: minute, hour, day of month, month, day of week. With null, the sweep runs only on request."""
    timezone: str = "UTC"
    """The time zone of `cron`, as a name of the tz database such as Europe/Berlin."""


@dataclass(kw_only=True, slots=True)
class PrefectConfig:
    """How Prefect shows a sweep."""

    fail_on: list[Annotated[str, choice(ENDS_TO_FAIL_ON, "outcome")]] = field(default_factory=list[str])
    """The outcomes of which one cell makes the state of the flow run Failed. `regressed` is a regression. With none,
    the state is Completed, with a name such as `Completed: 4 of 6 failed`."""
    reports_url: str = "http://127.0.0.1:4280"
    """The address at which `qnnsweep ui` serves reports, for the links in Prefect. Change it with `--port` of `ui`."""


@dataclass(kw_only=True, slots=True)
class RetentionConfig:
    """Limits for past runs. After each run, runs beyond a limit are removed, but never the newest. null: no limit."""

    keep_runs: Count | None = None
    """The maximum number of runs to keep."""
    keep_days: Positive | None = None
    """Runs that ended more than this number of days ago are removed."""
    max_gib: Positive | None = None
    """The oldest runs are removed until runs, results and blobs together have at most this size."""


@dataclass(kw_only=True, slots=True)
class FloorConfig:
    """The floor of each series of a cell: a smaller change is not a regression, even if the series hardly varies.

    The floor of a series in bytes or ms is a share of the baseline: 0.05 is 5 %. A floor of 0 has no effect.
    """

    passed: NonNegative = 0.0
    final_snr_db: NonNegative = 1.0
    device_snr_db: NonNegative = 3.0
    final_cosine: NonNegative = 0.002
    top1_agreement: NonNegative = 0.01
    accuracy: NonNegative = 0.01
    kl_divergence_nats: NonNegative = 0.005
    perplexity_ratio: NonNegative = 0.01
    observer_effect_snr_db: NonNegative = 3.0
    coverage: NonNegative = 0.0
    operators_introduced: NonNegative = 0.0
    delegated_nodes: NonNegative = 0.0
    non_delegated_nodes: NonNegative = 0.0
    pte_bytes: NonNegative = 0.01
    spill_bytes: NonNegative = 0.05
    latency_p50_ms: NonNegative = 0.05
    snr_db: NonNegative = 3.0
    introduced_snr_db: NonNegative = 3.0
    """The floors for the SNR of an operator's total and introduced gap, and of the error that a step introduces."""
    state_introduced_snr_db: NonNegative = 3.0
    same_token: NonNegative = 0.0
    """The floors for a step of a model with states: the SNR of the states that it writes, and its token."""


@dataclass(kw_only=True, slots=True)
class TrendConfig:
    """The parameters that decide whether a night is worse than the earlier nights. docs/history.md has the formula."""

    nights: Count = 30
    """The number of nights after which a worse level becomes the baseline. The history that is read, and therefore
    the baseline, has at most three times as many nights."""
    least_nights: Annotated[int, Interval(ge=3)] = 3
    """The number of nights that a baseline must have. A series with fewer nights gets no verdict."""
    sigmas: NonNegative = 16.0
    """The number of standard deviations of the noise, enlarged for few nights and for heavy tails, by which one night
    must be worse. A smaller change that lasts is reported on a later night. All limits that depend on the noise are
    proportional to this number."""
    false_share: Share = 0.05
    """The expected share of false ones among the operators, and among the steps, that are reported as worse."""
    floors: FloorConfig = field(default_factory=FloorConfig)
    fail: bool = False
    """Whether a regression makes the exit code 1, even if every cell passed."""
    notify: list[NotificationBlock] = field(default_factory=list[str])
    """The Prefect notification blocks that report a regression, as `<type>/<name>`, such as custom-webhook/team."""


@dataclass(kw_only=True, slots=True)
class Request:
    """The whole configuration of one cell."""

    model: ModelConfig
    scheme: SchemeConfig
    soc: SocConfig
    toolchain: ToolchainConfig = field(default_factory=ToolchainConfig)
    """`default`, or the name of a toolchain that `qnnsweep toolchain add` prepared; see docs/toolchains.md."""
    backend: BackendConfig
    device: DeviceConfig
    tolerance: ToleranceConfig
    farm: FarmConfig = field(default_factory=FarmConfig)
    """Set either `farm=` or `device=`. Overrides such as `device.python=` apply to every device of the farm."""
    pool: list[DeviceConfig] = field(default_factory=list[DeviceConfig], metadata={"is_key": False})
    """The farm's devices, composed from the names in `farm.devices`. This field is not a configuration key."""
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    program_words: list[str] = field(default_factory=list[str], metadata={"is_key": False}, compare=False)
    """The overrides that select or change the model, its samples, the scheme, the SoC and the backend, for commands
    that are shown, with the experiment that does so; none if the names say it all. This field is no configuration key,
    and equal requests can have other words."""
    searched_samples: Count | None = field(default=None, metadata={"is_key": False})
    """Of a repair: the number of evaluation samples, the first ones, that the search uses. This field is not a
    configuration key."""
    measured_changes: list[ChangeConfig] = field(default_factory=list[ChangeConfig], metadata={"is_key": False})
    """Of a repair: the changes that were measured already, so that others are tried. This field is not a configuration
    key."""
    samples: str | None = None
    """The place of the model's samples: a folder of images, a file .npy, .npz, .safetensors or .txt, a function
    `FILE.py:FUNCTION`, or `photographs`; see docs/models.md. With null, the samples are those of the model's
    configuration, and random numbers for a model by name. Without `calibration`, some of the samples calibrate."""
    calibration: str | None = None
    """The place of the samples that calibrate, as `samples`."""
    reuse: Reuse = Reuse.programs
    """With `capture`, measurements of earlier runs on the same device are reused. The tables name these runs."""
    try_impossible: bool = False
    """Whether cells are tried that a limit of the compiler makes impossible. `qnnsweep qualify` tries them."""
    by_operator: bool = False
    """Whether every distinct operator call of a model is a case of its own, with the tensors that it gets in the model.
    Otherwise the model is one program. `qnnsweep atlas` sets it."""
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    object_store: ObjectStoreConfig = field(default_factory=ObjectStoreConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    trend: TrendConfig = field(default_factory=TrendConfig)
    prefect: PrefectConfig = field(default_factory=PrefectConfig)
    target: TargetConfig = field(default_factory=TargetConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    certificate: CertificateConfig = field(default_factory=CertificateConfig)
    masked_names: RegularExpression = MASKED_NAMES
    """A variable of `device.environment` or an argument whose name matches this is a secret: if an override sets it,
    the run's files and Prefect have `***` instead. With a Prefect server, only ${oc.env:VARIABLE} is accepted."""
    artifacts: str = "artifacts"
    """The location of the sweep's store, tables and reports: a folder or `s3://bucket/prefix`, equal for all cells."""
    cache_folder: str | None = None
    """With artifacts=s3://…: the folder on this machine for local copies. The folder can be removed when no sweep is
    running. null means a folder below ~/.cache/qnnsweep, or below $XDG_CACHE_HOME/qnnsweep if the variable is set."""

    @property
    def most_cures(self) -> int:
        """How many changes of the scheme are tried at most: none of a float scheme, and none without a budget."""
        is_explained = self.measure.replay and self.measure.budget
        return self.measure.cures if is_explained and self.scheme.precision is Precision.quantized else 0

    @property
    def devices(self) -> tuple[DeviceConfig, ...]:
        """The devices that may execute the cell."""
        return tuple(self.pool) or (self.device,)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the cell's options on the axes in `qnnsweep.conf.names.AXES`. They name the cell in a plan."""
        target = self.model.name, self.scheme.name, self.soc.name, self.toolchain.name
        return *target, self.backend.name, self.where

    @property
    def where(self) -> str:
        """The cell's name on the axis `device`. This is the name of its farm or, without a farm, of its device."""
        return self.farm.name if self.pool else self.device.name
