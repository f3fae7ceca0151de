"""The schema of a scheme: how a model is quantized, and which operators are quantized in another way."""

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from qnnsweep.conf.constraints import Count, Positive, choice, dimensions, not_blank
from qnnsweep.conf.names import OBSERVERS, QUANT_DTYPES


class Precision(Enum):
    """The arithmetic of a scheme: 32-bit float, 16-bit float, or quantized integers."""

    float32 = "float32"
    float16 = "float16"
    quantized = "quantized"


class OverridePrecision(Enum):
    """The arithmetic of overridden operators: quantized integers or 16-bit float on the NPU, or the CPU's kernels."""

    quantized = "quantized"
    float16 = "float16"
    cpu = "cpu"


def fixed_range(limits: list[float]) -> str | None:
    """Return None for a range that a grid can have. Zero is in every range, because padding and ReLU need it."""
    is_pair = len(limits) == 2 and all(map(math.isfinite, limits))
    if is_pair and limits[0] <= 0 <= limits[1] and limits[0] < limits[1]:
        return None
    return "two numbers, [smallest, largest], with 0 between them or equal to one of them"


Block = Annotated[list[int], dimensions("a block's shape, every dimension 1 or more", least_rank=1)]
Pattern = Annotated[str, not_blank("a glob, in which * is any text, or null")]


@dataclass(kw_only=True, slots=True)
class SchemeOverride:
    """Operators, or inputs of the model, that are quantized in another way than the scheme says.

    An operator or an input is selected if all patterns that are not null match it. A setting that is null is as in
    the scheme, or as in another override that selects the operator too.
    """

    module: Pattern | None = None
    """A glob of a module's path, such as `layers.*.attention`. It also matches everything inside the module."""
    operator: Pattern | None = None
    """A glob of an operator type: `conv2d`, `linear`, `add`, as in aten, without the overload."""
    node: Pattern | None = None
    """A glob of the name of a node in the exported program. The column `source_nodes` of the table `operators` has the
    names."""
    method: Pattern | None = field(default=None, metadata={"identity": "unless None"})
    """A glob of the name of a method, for a model with several methods. Without it, the other patterns must match in
    every method."""
    input: Pattern | None = field(default=None, metadata={"identity": "unless None"})
    """A glob of the name of an input of the model. It selects no operator, and the only setting is `range`."""
    precision: OverridePrecision | None = None
    """float16 and cpu take the operator out of the quantized graph."""
    quant_dtype: Annotated[str, choice(QUANT_DTYPES, "dtype")] | None = None
    """The bits of the operator's activations and weights, such as 16a8w."""
    observer: Annotated[str, choice(OBSERVERS, "observer")] | None = None
    """The observer of the result's range."""
    range: Annotated[list[float], fixed_range] | None = None
    """[smallest, largest]: the fixed range of the result or of the input, which calibration does not change."""
    constant_range: Annotated[list[float], fixed_range] | None = field(
        default=None, metadata={"identity": "unless None"}
    )
    """[smallest, largest]: the fixed range of the constants that the operator reads, such as an addend. Values outside
    it are clipped."""
    symmetric: bool | None = None
    """Whether the result's range is symmetric around zero."""
    per_channel: bool | None = None
    """Whether the weight has one scale per channel instead of one scale."""
    least_weight_scale: Positive | None = field(default=None, metadata={"identity": "unless None"})
    """The least step of a weight's grid. A channel with tiny weights has a tiny step, of which a bias of 32 bits is a
    multiple too: a larger step leaves more room for the bias."""
    fit_weights: bool | None = field(default=None, metadata={"identity": "unless None"})
    """Whether the steps of a 16-bit weight are 0.4 % larger, so that HTP's kernels hold every quantized weight. Without
    it, the largest weight of each channel saturates if it is positive."""
    block_size: Block | None = None
    """The shape of a weight's blocks, for quant_dtype 16a4w_block."""
    share_clamp: bool | None = None
    """Whether the result has the grid of the clamp (relu, relu6, hardtanh …) that reads it."""
    as_conv2d: bool | None = None
    """Whether a linear layer, or a batch norm that no convolution takes in, is compiled in another form: as a
    convolution with a kernel of 1×1."""


@dataclass(kw_only=True, slots=True)
class SchemeConfig:
    name: str
    precision: Precision = Precision.quantized
    quant_dtype: str | None = None
    """A member of ExecuTorch's `QuantDtype` without the prefix `use_`: 8a8w, 16a4w_block …. A float scheme has null."""
    per_channel_conv: bool = True
    per_channel_linear: bool = True
    per_channel_embedding: bool = False
    observer: Annotated[str, choice(OBSERVERS, "observer")] = "MinMaxObserver"
    """The torchao pt2e observer class for activations. ExecuTorch's default, MovingAverageMinMaxObserver, is not the
    default here: its result depends on the order of the samples and loses the extremes of early samples."""
    activation_symmetric: bool = False
    calibration_samples: Count = 128
    """The maximum number of the model's calibration samples to use."""
    block_size: dict[str, Block] = field(default_factory=dict[str, list[int]])
    """For block quantization: maps an operator type (`conv2d`, `linear`) to the block's shape."""
    overrides: list[SchemeOverride] = field(default_factory=list[SchemeOverride])
    """The operators that are quantized in another way; see docs/schemes.md."""


@dataclass(kw_only=True, slots=True)
class ChangeConfig:
    """A change that a search has measured."""

    cause: str
    """The cause of the error that it is for."""
    change: str
    """What it does, such as `16-bit activations`."""
    operators: list[str]
    """The names of the operators."""
    scheme: SchemeConfig
    """The whole scheme with the change."""
    has_failed: bool
    """Whether it did not help, so that the same is not done at one of its operators again."""
