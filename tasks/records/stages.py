"""The records of the stages up to `lower`: frozen dataclasses of values and blobs.

A later stage reads nothing but these records. A field with `IDENTITY_NEUTRAL` metadata (logs, seconds, names) is stored
with its record and left out of the record's digest. A field with `IDENTITY_UNLESS_NONE` metadata is left out if it is
None, so that a new field does not change the digests of records without it.
"""

from dataclasses import dataclass, field
from typing import Any

from qnnsweep.tasks.records.keys import METHOD
from qnnsweep.tasks.records.program import ProgramCheck, ProgramFacts
from qnnsweep.tasks.records.vocabulary import OperatorStatus, Reference

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
    weights: str  # origin: `pretrained`, `trained`, `random`, `unstated`, or the model's own `weights_origin`
    driven: Driven | None = field(default=None, metadata=IDENTITY_UNLESS_NONE)  # None for a model without states


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

    @property
    def name(self) -> str:
        """The method's name in the program."""
        return self.method or METHOD

    @property
    def results(self) -> tuple[int, ...]:
        """The positions of the outputs that are no states; of all outputs if every output is a state."""
        outputs = tuple(range(len(self.outputs)))
        return tuple(output for output in outputs if output not in (self.states or ())) or outputs


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    """A node of the edge graph after the backend's passes and before delegation."""

    index: int  # position in the graph
    name: str
    target: str
    debug_handle: int | None  # together with `output_index`, the operator's only name on the device
    output_index: int  # which of the node's outputs the operator stands for, if the node has several
    source_nodes: tuple[str, ...]
    module_path: str
    stack_trace: str
    shape: tuple[int, ...] | None  # None for a tuple, whose elements are the getitem nodes that follow
    dtype: str | None
    quantization: Quantization | None
    axis_order: tuple[int, ...] | None
    subgraph: int | None  # the delegated subgraph, numbered in graph order; None on the CPU
    constant: bool  # computed only from parameters; the compiler folds such a value, so it does not exist at run time
    unused: bool  # no node reads this output of a call
    overrides: tuple[int, ...] = ()  # indices of the scheme's overrides that select the operator
    sources: tuple[int, ...] = ()  # the indices of the operators whose values it reads
    method: str | None = field(default=None, metadata=IDENTITY_UNLESS_NONE)  # in comparisons of several methods


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedTensor:
    """A tensor that the debug program is expected to log.

    `identifier` is the tensor's name in the log. If a delegate logs the tensor, it is the delegate's name for the
    tensor (QNN: `<node>@<output index>`). If the runtime logs the tensor, it is `instruction:<id>:<position>`.
    """

    identifier: str
    debug_handles: tuple[int, ...]
    output_index: int
    quantization: Quantization | None
    axis_order: tuple[int, ...] | None  # the permutation from PyTorch's layout to the device's


@dataclass(frozen=True, kw_only=True, slots=True)
class RequantizedTensor:
    """A value that a delegate converts to another grid, because some readers of the value need this grid.

    The conversion is no node of the edge graph: the delegate inserts it into its own graph. The delegate logs the
    result under `identifier`, the name of an `ExpectedTensor` without debug handles. Another delegated subgraph may log
    another tensor under the same name.
    """

    operator: Operator  # the conversion, with the grid and axis order of its result; numbered after the operators
    identifier: str
    instruction: int | None  # the call of the delegate that logs the result; None if no reader is known
    source: int | None  # index of the operator whose value is converted; None if it is no operator's value
    readers: tuple[int, ...]  # indices of the operators that read the result instead of the value itself


@dataclass(frozen=True, kw_only=True, slots=True)
class DelegationCount:
    """How many nodes of an operator type the delegate runs, and how many stay on the CPU."""

    operator: str
    delegated: int
    not_delegated: int
    refusals: tuple[str, ...]  # what the compiler printed about the nodes that it refused


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileFacts:
    """The byte counts that the HTP compiler printed for one delegated subgraph of the shipping program."""

    subgraph: int
    spill_bytes: int
    fill_bytes: int
    write_total_bytes: int
    read_total_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Instruction:
    """An instruction of a program: a kernel, or the call of a delegate."""

    id: int  # its number in the runtime's log
    debug_handles: tuple[int, ...]  # for a delegate call, the handles of all operators in the subgraph
    backend: str | None  # the delegate's name (`QnnBackend`); None for a kernel
    subgraph: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DelegatedNode:
    """A node of a graph that a delegate built. The delegate logs the node's cycles under the node's name."""

    subgraph: int | None
    name: str
    debug_handle: int | None
    users: tuple[str, ...]  # the names of the nodes that read this node's value; `output` for the graph's end


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileProgram:
    """The shipping program compiled again so that its delegate logs operators."""

    program: Blob | None
    unavailable: str | None  # the toolchain's reason why there is no program; None if there is one
    nodes: tuple[DelegatedNode, ...]
    schematics: tuple[Blob, ...]  # at profile level 3: the HTP compiler's files, one per subgraph, in compilation order


@dataclass(frozen=True, kw_only=True, slots=True)
class Counterpart:
    """The nodes of another graph that compute an operator's value, in graph order. The last node has the value."""

    nodes: tuple[str, ...]
    status: OperatorStatus | None  # why there is no value to compare with; None if there is one


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherReference:
    """A reference other than the edge graph: the graph `exported` or `quantized`, with its values for the operators."""

    name: Reference
    values: Blob  # values of operators whose counterpart has no status; safetensors, keys `<sample>/<operator index>`
    counterparts: tuple[Counterpart, ...]  # one per operator, in the order of the operators
    unclaimed: tuple[Operator, ...]  # nodes that are no operator's counterpart, numbered after the operators


@dataclass(frozen=True, kw_only=True, slots=True)
class LoweredMethod:
    """A method of a compiled cell: its debug and profile programs, and the facts about it.

    `reference_calls` and `reference_constants` store the edge graph: the calls of its operators, and the constants of
    these calls. `reference` has the value of every operator in the edge graph, except constants, for the first
    `operator_samples` evaluation samples (safetensors, keys `<sample>/<operator index>`). `outputs_edge` has the final
    outputs of the edge graph for all samples, and `outputs_designed` those of the rung `designed`.
    """

    quantized: QuantizedMethod
    debug_program: Blob | None
    debug_unavailable: str | None  # the toolchain's reason why there is no debug program; None if there is one
    etrecord: Blob | None
    input_qparams: tuple[Quantization | None, ...]  # one per input of the model; None for an unquantized input
    # Of a model with states: per output, the index of its operator.
    output_operators: tuple[int | None, ...] | None = field(default=None, metadata=IDENTITY_UNLESS_NONE)
    operators: tuple[Operator, ...]
    expected_tensors: tuple[ExpectedTensor, ...]
    operator_samples: int
    reference_calls: Blob
    reference_constants: Blob
    reference: Blob
    outputs_edge: Blob
    outputs_designed: Blob | None
    designed_unavailable: str | None  # the reason why the host cannot compute the rung; None if it can
    delegation: tuple[DelegationCount, ...]
    delegated_subgraphs: int
    delegated_graph: Blob
    compile_facts: tuple[CompileFacts, ...]
    debug_buffer_bytes: int  # the most bytes that one execution of the debug program logs, by the tensors' metadata
    facts: ProgramFacts  # of the shipping program, read back from its bytes
    debug_facts: ProgramFacts | None
    instructions: tuple[Instruction, ...] = ()  # of the shipping program
    profile: ProfileProgram | None = None  # None if it was not requested
    references: tuple[OtherReference, ...] = ()  # the requested references
    requantized: tuple[RequantizedTensor, ...] = ()  # of the debug program

    @property
    def exported(self) -> ExportedMethod:
        """The exported method that was quantized and lowered."""
        return self.quantized.exported

    def output_grid(self, output: int) -> Quantization | None:
        """Return the grid of an output of a method with states; None if it has none."""
        index = self.output_operators[output] if self.output_operators else None
        return None if index is None else self.operators[index].quantization


@dataclass(frozen=True, kw_only=True, slots=True)
class LoweredProgram:
    """A compiled cell: the shipping program with all methods, the methods, and the calls that made it."""

    model: ModelFacts
    scheme: str = field(metadata=IDENTITY_NEUTRAL)  # the scheme's name when the program was lowered
    backend: str
    soc: str | None
    program: Blob
    bundled_program: Blob | None
    methods: tuple[LoweredMethod, ...]
    checks: tuple[ProgramCheck, ...] = field(default=(), metadata=IDENTITY_NEUTRAL)  # of the facts against the request
    made: tuple[StageCall, ...] = field(default=(), metadata=IDENTITY_NEUTRAL)

    @property
    def quantized(self) -> QuantizedModel:
        """The quantized model that was lowered."""
        methods = tuple(method.quantized for method in self.methods)
        return QuantizedModel(model=self.model, methods=methods, made=self.made[:2])
