"""The schema of a model: its factory, its inputs and its samples, or those of each of its methods."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from conf.constraints import FunctionPath, at_least, choice, dimensions, matches, not_blank
from conf.names import DTYPES


@dataclass(kw_only=True, slots=True)
class InputConfig:
    name: Annotated[str, not_blank("the argument's name in the module's forward")]
    """The argument's name in the module's `forward`. The list of inputs is in the order of the arguments."""
    shape: Annotated[list[int], dimensions("every dimension is 1 or more")]
    dtype: Annotated[str, choice(DTYPES, "dtype")] = "float32"
    """A torch dtype without its prefix: float32, int32, int64, bool …"""


@dataclass(kw_only=True, slots=True)
class DataConfig:
    source: FunctionPath
    """`package.module:function`. It is called with `count` and `arguments` and yields samples; see docs/models.md."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    count: Annotated[int, at_least(1, "1 or more samples")] = 8
    """The number of samples to take."""


@dataclass(kw_only=True, slots=True)
class MethodConfig:
    """One of several methods of a program."""

    name: Annotated[str, matches(r"[A-Za-z_][A-Za-z0-9_]*", "a name of letters, digits and underscores")]
    """The method's name in the program."""
    function: Annotated[str, matches(r"[A-Za-z_][A-Za-z0-9_]*", "the name of a function of the module")] = "forward"
    """The function of the module that the method computes."""
    factory: FunctionPath | None = None
    """`package.module:function`, which returns the module. null means the model's factory."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    """Arguments of the factory, in addition to the model's. Methods with equal arguments share one module."""
    inputs: list[InputConfig] = field(default_factory=list[InputConfig])
    calibration: DataConfig | None = None
    """The samples that calibrate the method's observers. Every quantized scheme needs such samples."""
    evaluation: DataConfig | None = None
    """The samples with which the method is run and compared."""


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    name: str
    factory: FunctionPath
    """`package.module:function`. This can be any callable that returns a `torch.nn.Module`."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    inputs: list[InputConfig] = field(default_factory=list[InputConfig])
    calibration: DataConfig | None = None
    """The samples that calibrate the observers. Every quantized scheme needs such samples."""
    evaluation: DataConfig | None = None
    """The samples that every comparison uses."""
    classifier: bool = False
    """Whether the index of an output's maximum is the prediction. If not, top-1 agreement and accuracy are null."""
    methods: list[MethodConfig] | None = field(default=None, metadata={"identity": "unless None"})
    """The methods of the program. They have the inputs and the samples then. null means one method, `forward`."""
