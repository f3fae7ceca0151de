"""Everything that can be asked for, typed and checked.

Each class is one configuration group; `Request` is one cell's whole configuration. The classes are plain (Hydra
refuses frozen ones) and slotted, so that an unknown key is refused even with `+key=value`. Nobody writes to an
instance after `conf.load` has made it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


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


@dataclass(kw_only=True, slots=True)
class InputConfig:
    name: str
    """The argument's name in the module's `forward`; the order of inputs is the order of this list."""
    shape: list[int]
    dtype: str = "float32"
    """A torch dtype without its prefix: float32, int32, int64, bool …"""


@dataclass(kw_only=True, slots=True)
class DataConfig:
    source: str
    """`package.module:function`, called with `count` and `arguments`; yields samples (see docs/models.md)."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    count: int = 8
    """How many samples to take."""


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    name: str
    factory: str
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
    observer: str = "MinMaxObserver"
    """A torchao pt2e observer class for activations. ExecuTorch's own default, MovingAverageMinMaxObserver, depends on
    the order of the samples and forgets the extremes of early ones."""
    activation_symmetric: bool = False
    calibration_samples: int = 128
    """At most this many of the model's calibration samples."""
    block_size: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Block quantization only: operator type (`conv2d`, `linear`) to the block's shape."""


@dataclass(kw_only=True, slots=True)
class SocConfig:
    name: str
    arch: int
    """Hexagon architecture: 75 is v75."""
    vtcm_mib: int


@dataclass(kw_only=True, slots=True)
class BackendConfig:
    name: str
    kind: BackendKind


@dataclass(kw_only=True, slots=True)
class DeviceConfig:
    name: str
    transport: TransportKind = TransportKind.local
    work_folder: str | None = None
    """Where blobs and launches are laid out on the device; null is `artifacts/devices/local`, for a local device."""
    python: str | None = None
    """The interpreter that starts the project's runner on the device; null is this one, for a local device."""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    deadline_s: float = 600.0
    """Every command on the device is stopped after this many seconds."""


@dataclass(kw_only=True, slots=True)
class OperatorTolerance:
    """How far an operator may be from the reference. Both must be exceeded for an error to be its own."""

    snr_db: float | None = None
    """Least SNR, in dB; null asks nothing."""
    steps: float | None = None
    """Largest error in steps of the device's grid, where it has one; null leaves it to `snr_db`."""


@dataclass(kw_only=True, slots=True)
class ToleranceConfig:
    """What a cell must reach to pass. A threshold of null asks nothing."""

    name: str
    final_snr_db: dict[str, float] = field(default_factory=dict[str, float])
    """Scheme name to the least SNR, in dB, of any final output of any sample against eager fp32."""
    top1_agreement: dict[str, float] = field(default_factory=dict[str, float])
    """Scheme name to the least share of samples whose largest output is at the same index as eager's."""
    operators: dict[str, OperatorTolerance] = field(default_factory=dict[str, OperatorTolerance])
    """`<scheme>`, `<scheme>/<target>` or `*/<target>` (the most exact wins) to what an operator may introduce."""
    introduced_operators: int | None = None
    """At most so many operators may introduce error; null reports them and lets the cell pass."""


@dataclass(kw_only=True, slots=True)
class MeasureConfig:
    warm_up: int = 0
    """Inferences before the timed ones, per sample."""
    iterations: int = 1
    """Timed inferences per sample."""
    operator_samples: int = 1
    """Evaluation samples for which every operator's tensor is captured and compared."""
    dump_operators: bool = True
    """Build and run the debug program. Off: final outputs only."""
    replay: bool = True
    """Run every operator again on the device's own inputs, to tell introduced from inherited error."""
    debug_buffer_bytes: int | None = None
    """Size of the runner's debug buffer; null sizes it from the graph."""
    profile_level: int = 0
    """Look at the time inside the delegate, with a third program: 2 logs each operator's cycles, 3 keeps the compiler's
    schematic of the optimized graph too. Off with 0: the shipping program is never slowed down by it."""
    metrics: list[str] = field(default_factory=list[str])
    """More metrics for the table `metrics`: names of `tasks.numerics.metrics.MORE_METRICS`, or your own as
    `package.module:function`, a function of (actual, reference) or an ExecuTorch NumericalComparatorBase."""


@dataclass(kw_only=True, slots=True)
class LimitsConfig:
    parallel: int | None = None
    """Toolchain children at once; null fits cores and memory."""
    child_deadline_s: float = 3600.0
    child_memory_gib: float = 16.0
    """A toolchain child above this resident size is stopped and its cell fails."""


@dataclass(kw_only=True, slots=True)
class Request:
    """One cell's whole configuration."""

    model: ModelConfig
    scheme: SchemeConfig
    soc: SocConfig
    backend: BackendConfig
    device: DeviceConfig
    tolerance: ToleranceConfig
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    artifacts: str = "artifacts"
    """Folder of the store, the tables and the reports. One for the whole sweep."""
