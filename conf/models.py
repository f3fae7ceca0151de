"""The schema of a model: its factory, its inputs and its samples, or those of each of its methods, and its states."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from annotated_types import Interval

from qnnsweep.conf.constraints import FunctionPath, choice, dimensions, matches, not_blank
from qnnsweep.conf.names import DTYPES, STATE_UPDATES, TOKENS_READ


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
    """`package.module:function` or `folder/file.py:function`. It is called with `count` and `arguments` and yields
    samples; see docs/models.md."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    count: Annotated[int, Interval(ge=1)] = 8
    """The number of samples to take: all, if there are fewer."""


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
    """As the model's inputs. An empty list means that the first evaluation sample says them."""
    calibration: DataConfig | None = None
    """The samples that calibrate the method's observers. Every quantized scheme needs such samples."""
    evaluation: DataConfig | None = None
    """The samples with which the method is run and compared."""


@dataclass(kw_only=True, slots=True)
class StateConfig:
    """An output that a later step reads as an input, such as the new columns of a key-value cache."""

    method: str | None = None
    """The method that has the output. null means the model's only method."""
    output: str
    """The output's name in the table `outputs`: its key in a dict, or its position."""
    to_method: str | None = None
    """The method that has the input. null means the method that has the output."""
    input: str
    """The input's name."""
    update: Annotated[str, choice(STATE_UPDATES, "update")] = "replace"
    """How the output changes the input. `replace`: the output is the next value. `append`: the output is written after
    what was written before. `ring`: as `append`, from the beginning again when the end is reached. `shift`: the input
    moves towards its beginning, and the output is its end."""
    axis: Annotated[int, Interval(ge=-8, le=7)] = -1
    """The axis along which the output is written. Not used by `replace`."""


@dataclass(kw_only=True, slots=True)
class DriverConfig:
    """How the tokens of a language model are chosen, step by step."""

    output: str
    """The output with the scores of the next token along its last axis. The last row of a step counts."""
    input: str
    """The input that gets the token of the previous step, in every method that has an input of this name."""
    tokens: Annotated[str, choice(TOKENS_READ, "choice")] = "greedy"
    """`greedy`: every step reads the token with the highest score of the step before, on the device as in PyTorch.
    `teacher_forced`: the device reads the tokens that eager PyTorch chose."""


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    name: str
    factory: FunctionPath
    """`package.module:function`, or `folder/file.py:function` with the path of a Python file. This can be any callable
    that returns a `torch.nn.Module` or a `torch.export.ExportedProgram`."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    inputs: list[InputConfig] = field(default_factory=list[InputConfig])
    """The inputs of the module's `forward`, in the order of its arguments. An empty list means that names, shapes and
    dtypes are those of the first evaluation sample, whose values can be any structure of tensors; see docs/models.md.
    A model with states needs a list."""
    calibration: DataConfig | None = None
    """The samples that calibrate the observers. Every quantized scheme needs such samples."""
    evaluation: DataConfig | None = None
    """The samples that every comparison uses."""
    classifier: bool = False
    """Whether the index of an output's maximum is the prediction. If not, top-1 agreement and accuracy are null."""
    methods: list[MethodConfig] | None = field(default=None, metadata={"identity": "unless None"})
    """The methods of the program. They have the inputs and the samples then. null means one method, `forward`."""
    states: list[StateConfig] | None = field(default=None, metadata={"identity": "unless None"})
    """The outputs that are inputs of later steps. The samples of the model are then sequences of steps, and the methods
    have no samples of their own. null means that every sample is one call."""
    driver: DriverConfig | None = field(default=None, metadata={"identity": "unless None"})
    """The choice of tokens, for a language model with states. null means that no step reads the output of another as a
    token."""
    cases: FunctionPath | None = field(default=None, metadata={"identity": "unless None"})
    """`package.module:function`, which yields the cases of a collection for `qnnsweep atlas`; see docs/operators.md.
    The factory and the data sources are called with the arguments of each case. null means that this is one model."""


OWN_CALLS = "qnnsweep.tasks.toolchain.model_calls:call_cases"
"""The value of `cases` with which the cases are the distinct operator calls of the model itself."""

Split = Literal["calibration", "evaluation"]
"""The kinds of samples of a model."""

SAMPLES_OF_CALLS: dict[Split, int] = {"calibration": 8, "evaluation": 1}
"""How many samples of the model an operator call has at most, by the kind of samples."""


def operators_of(model: ModelConfig) -> ModelConfig:
    """Return the collection of a model's operator calls; the model itself if it is a collection."""
    return model if model.cases else replace(model, name=f"operators_of_{model.name}", cases=OWN_CALLS)
