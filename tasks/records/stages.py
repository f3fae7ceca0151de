"""The records of the stages before `lower`: frozen dataclasses of values and blobs.

A later stage reads nothing but these records. A field with `IDENTITY_NEUTRAL` metadata (logs, seconds, names) is stored
with its record and left out of the record's digest. A field with `IDENTITY_UNLESS_NONE` metadata is left out if it is
None, so that a new field does not change the digests of records without it.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from qnnsweep.tasks.records.keys import METHOD

IDENTITY_NEUTRAL: dict[str, Any] = {"identity": False}
IDENTITY_UNLESS_NONE: dict[str, Any] = {"identity": "unless None"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Blob:
    """Bytes in the store, addressed by their digest."""

    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolchain:
    """The versions of the toolchain. They are part of the cache keys of all results that depend on the toolchain."""

    python: str
    """Version of Python."""
    torch: str
    """Version of torch."""
    executorch: str
    """Version of ExecuTorch."""
    torchao: str
    """Version of torchao."""
    qnn: str
    """QNN's build id, for example `v2.49.40.260701`."""
    qnn_files: str | None = field(default=None, metadata=IDENTITY_UNLESS_NONE)
    """Digest of QNN's libraries, if the toolchain was prepared; null for the toolchain of this Python environment."""
    bridge: str | None = field(default=None, metadata=IDENTITY_UNLESS_NONE)
    """The bridge between ExecuTorch and this QNN release; null if the release needs none."""
    executorch_files: str | None = field(default=None, metadata=IDENTITY_UNLESS_NONE)
    """Digest of the Python files of another commit of ExecuTorch that the toolchain uses; null for those installed."""
    passes_off: str | None = field(default=None, metadata=IDENTITY_UNLESS_NONE)
    """The passes of ExecuTorch that the toolchain switches off, with commas; null if there are none."""
    operators_skipped: str | None = field(default=None, metadata=IDENTITY_UNLESS_NONE)
    """The operators that the toolchain keeps on the CPU, with commas; null if there are none."""
    executorch_commit: str | None = field(default=None, metadata=IDENTITY_NEUTRAL)
    """The git commit of ExecuTorch, or of the Python files of its QNN backend; null if it is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """An input or output of a program."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # torch's name without its prefix: `float32`, `int64`


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantization:
    """The affine quantization of a tensor: real value = (quantized value - zero_point) * scale."""

    scale: tuple[float, ...]  # one per channel along `axis`, or one for the tensor
    zero_point: tuple[int, ...]  # one per scale
    axis: int | None  # the channel axis in PyTorch's layout; None for a quantization per tensor
    quant_min: int
    quant_max: int
    dtype: str

    @property
    def ends(self) -> tuple[float, float] | None:
        """The ends of the grid; None for one grid per channel."""
        if len(self.scale) != 1:
            return None
        (scale,), (zero_point,) = self.scale, self.zero_point
        return (self.quant_min - zero_point) * scale, (self.quant_max - zero_point) * scale


@dataclass(frozen=True, kw_only=True, slots=True)
class InputMistake:
    """A possible mistake in the order or layout of the inputs, and the sample whose outputs it would change most."""

    name: str
    sample: int
    refused: str | None  # why eager PyTorch cannot run on the inputs after the mistake; None if it can


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The place of a step: its sequence, and its number in this sequence."""

    sequence: int
    step: int


def by_place(positions: Sequence[Place] | None) -> dict[tuple[int, int], int]:
    """Return the samples of a method by the sequence and the number of their steps. `positions`: of all samples."""
    return {(place.sequence, place.step): sample for sample, place in enumerate(positions or ())}


@dataclass(frozen=True, kw_only=True, slots=True)
class StateLink:
    """An output, by its position in its method, that changes an input of a later step."""

    method: str
    output: int
    to_method: str
    input: int
    update: str
    axis: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRule:
    """The output of a method that has the scores of the next token, and the input that gets the token before it."""

    method: str
    output: int | None
    input: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedStep:
    """A step of a sequence.

    `inputs` has the key of each input's value in `Driven.fixed`, in the plan of a bundle the path of the file with the
    value, and None for a state or a token.
    """

    method: str
    inputs: tuple[str | None, ...]
    keep: int | None  # the number of new columns that count; None for all
    dump: bool = False  # whether the runner writes the inputs of the step to files


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPlan:
    """The steps of every sequence, with the links between them. As JSON, it is the plan of the runner."""

    links: tuple[StateLink, ...]
    tokens: tuple[TokenRule, ...]  # one per method that has the input or the output; none without a driver
    sequences: tuple[tuple[PlannedStep, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Driven:
    """The sequences of a model with states, whose steps are the samples of its methods.

    `fixed` has the inputs that are no outputs of earlier steps, with the key `<sequence>/<step>/<input name>`.
    """

    plan: StepPlan
    fixed: Blob
    names: tuple[str, ...]  # of the sequences
    vocabulary: Blob | None = None  # the texts of the tokens, as a list in JSON


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """The facts of a whole model. The records of all stages up to `lower` have them."""

    name: str = field(metadata=IDENTITY_NEUTRAL)  # when it was exported
    # Origin: `pretrained`, `trained`, `random`, `unstated`, or the model's own `weights_origin`; then, if they were
    # converted, from which dtype.
    weights: str
    driven: Driven | None = field(default=None, metadata=IDENTITY_UNLESS_NONE)  # None for a model without states
    samples: str | None = field(default=None, metadata=IDENTITY_NEUTRAL)  # origin, if the data sources say it


@dataclass(frozen=True, kw_only=True, slots=True)
class StageCall:
    """A call of the toolchain that made a record."""

    stage: str
    seconds: float
    log: Blob | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorCall:
    """An operator call of an exported program, before it is decomposed or quantized."""

    text: str
    """Such as `aten.linear.default(float32[1, 64], constant float32[10, 64])`, where `constant` are weights, or
    `aten.max.dim(float32[2, 8], dim=1) -> [0]`, where `[0]` are the positions of the outputs that are used."""
    count: int  # how often the program makes the call
    module_path: str  # of the first of these calls; empty for the model itself


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedMethod:
    """A method of a model exported by torch.export, its inputs, and its outputs on the host.

    The tensors are in safetensors files. `calibration` and `evaluation` have the keys `<sample>/<tensor name>`.
    `outputs_eager` (of eager PyTorch) and `outputs_exported` (of the exported program) have the keys
    `<sample>/<output index>`.
    """

    method: str | None = field(default=None, metadata=IDENTITY_UNLESS_NONE)  # None for a program's only method, forward
    program: Blob
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    calibration: Blob | None
    calibration_samples: int
    evaluation: Blob
    sample_names: tuple[str, ...]
    labels: tuple[int | None, ...]
    outputs_eager: Blob
    outputs_exported: Blob
    input_mistakes: tuple[InputMistake, ...]
    mistaken_outputs: Blob  # of eager PyTorch after each mistake; safetensors, keys `<mistake index>/<output index>`
    # Of a model with states: the places of the samples, and the positions of the outputs that are states.
    positions: tuple[Place, ...] | None = field(default=None, metadata=IDENTITY_UNLESS_NONE)
    states: tuple[int, ...] | None = field(default=None, metadata=IDENTITY_UNLESS_NONE)
    calls: tuple[OperatorCall, ...] = field(default=(), metadata=IDENTITY_NEUTRAL)  # distinct, in the graph's order
    # The outputs of the module that are no tensors, and what they are: `past_key_values: DynamicCache`.
    left_out: tuple[str, ...] = field(default=(), metadata=IDENTITY_NEUTRAL)
    # The user's lines with in-place operations whose memory is read afterwards, but not through their results.
    lost_writes: tuple[str, ...] | None = field(default=None, metadata=IDENTITY_UNLESS_NONE)

    @property
    def name(self) -> str:
        """The method's name in the program."""
        return self.method or METHOD

    @property
    def results(self) -> tuple[int, ...]:
        """The positions of the outputs that are no states; of all outputs if every output is a state."""
        outputs = tuple(range(len(self.outputs)))
        return tuple(output for output in outputs if output not in (self.states or ())) or outputs

    @property
    def of_model(self) -> tuple[int, ...]:
        """Per sample, the number of the sample of the model: with states, that of the sequence of its step."""
        if self.positions is None:
            return tuple(range(len(self.sample_names)))
        return tuple(place.sequence for place in self.positions)

    def samples_of(self, numbers: Container[int]) -> list[int]:
        """Return the samples that belong to the samples of the model with these numbers."""
        return [sample for sample, number in enumerate(self.of_model) if number in numbers]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedModel:
    """An exported model: its methods, in the order of its configuration, and the call that exported it."""

    model: ModelFacts
    methods: tuple[ExportedMethod, ...]
    made: tuple[StageCall, ...] = field(default=(), metadata=IDENTITY_NEUTRAL)


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizedMethod:
    """The graph to lower: the graph that pt2e converted (quantized scheme) or the exported program (float scheme).

    `float_weights` has the weights and biases before they were rounded, in float32 (safetensors). The key of a tensor
    is the name of the observer that pt2e inserted for it. In the edge graph, the operator that dequantizes the rounded
    tensor has this name in `source_nodes`.
    """

    exported: ExportedMethod
    program: Blob
    outputs_quantized: Blob  # on the host; safetensors, keys `<sample>/<output index>`
    float_weights: Blob | None = None  # None for a float scheme


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizedModel:
    """A quantized model: its methods, and the calls that exported and quantized it."""

    model: ModelFacts
    methods: tuple[QuantizedMethod, ...]
    made: tuple[StageCall, ...] = field(default=(), metadata=IDENTITY_NEUTRAL)

    @property
    def exported(self) -> ExportedModel:
        """The exported model that was quantized."""
        methods = tuple(method.exported for method in self.methods)
        return ExportedModel(model=self.model, methods=methods, made=self.made[:1])
