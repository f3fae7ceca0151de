"""The record of the stage lower: a compiled program, its methods, and the operators of their edge graphs."""

from dataclasses import dataclass, field

from qnnsweep.tasks.records.program import ProgramCheck, ProgramFacts
from qnnsweep.tasks.records.stages import (
    IDENTITY_NEUTRAL,
    IDENTITY_UNLESS_NONE,
    Blob,
    ExportedMethod,
    ModelFacts,
    Quantization,
    QuantizedMethod,
    QuantizedModel,
    StageCall,
)
from qnnsweep.tasks.records.vocabulary import OperatorStatus, Reference, SampleRole

NOT_REQUESTED = "measure.dump_operators is off"
"""The reason why there is no debug program if none was requested."""


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
class Span:
    """A range of a method's operators, by index."""

    first: int
    end: int  # exclusive


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedTensor:
    """A tensor that a debug program is expected to log.

    `identifier` is the tensor's name in the log. If a delegate logs the tensor, it is the delegate's name for the
    tensor (QNN: `<node>@<output index>`). If the runtime logs the tensor, it is `instruction:<id>:<position>`. Another
    debug program can log another tensor under the same name: `span` is that of the program that logs this one.
    """

    identifier: str
    debug_handles: tuple[int, ...]
    output_index: int
    quantization: Quantization | None
    axis_order: tuple[int, ...] | None  # the permutation from PyTorch's layout to the device's
    span: Span | None = field(default=None, metadata=IDENTITY_UNLESS_NONE)


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
    span: Span | None = field(default=None, metadata=IDENTITY_UNLESS_NONE)  # that of the debug program that logs it


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
class Unlogged:
    """Operators that no debug program of a method logs, because a program that logs them does not serve."""

    span: Span
    reason: str = field(metadata=IDENTITY_NEUTRAL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Division:
    """The parts of a method's operators, each of which has a debug program of its own."""

    spans: tuple[Span, ...]
    unlogged: tuple[Unlogged, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DebugProgram:
    """The shipping program compiled again so that it logs operators, or the reason why there is no such program."""

    program: Blob | None
    unavailable: str | None  # the toolchain's reason; None if there is a program
    span: Span | None = None  # the operators that it logs; None for all
    facts: ProgramFacts | None = None
    buffer_bytes: int = 0  # the most bytes that one execution logs, by the tensors' metadata


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
class ChosenSample:
    """An evaluation sample whose operators are captured, and why."""

    sample: int
    role: SampleRole


@dataclass(frozen=True, kw_only=True, slots=True)
class MergedPair:
    """Two operators, by index, that the compiler merges, so that the value between them is not rounded."""

    reader: int
    source: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedBias:
    """A bias of 32 bits that has the scale of another call which shares it, and how the device reads it."""

    dequantize: int
    """The index of the operator that dequantizes the bias for a call."""
    scale: tuple[float, ...]
    """The scale of the call's own input and weight, by which the device multiplies: one per channel, or one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenGrid:
    """The grid on which the device's kernel writes an operator's value, which is read on the grid of the operator."""

    operator: int
    quantization: Quantization
    held: tuple[float, ...]
    """The two ends of a range with which the kernel writes what is read, unless values are outside."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Design:
    """What the model of the device's arithmetic needs beside the grids of a method's operators and inputs.

    `halves`: the values in float16, by operator index; the model's inputs have the indices -1, -2 and so on.
    `written`: where the device's kernels write another grid than that of the operator.
    `largest_weight`: the largest quantized 16-bit weight that the device's kernels hold, beyond which weights saturate;
    None if they hold all.
    """

    halves: tuple[int, ...]
    merged: tuple[MergedPair, ...]
    shared_biases: tuple[SharedBias, ...]
    written: tuple[WrittenGrid, ...]
    largest_weight: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Weight:
    """A constant with two or more axes that convolutions, linear layers, matrix products or embeddings read."""

    readers: tuple[int, ...]  # the indices of the operators that read it
    elements: int
    element_bits: float | None  # with the scales of blocks; None for a float weight


@dataclass(frozen=True, kw_only=True, slots=True)
class LoweredMethod:
    """A method of a compiled cell: its debug and profile programs, and the facts about it.

    `reference_calls` and `reference_constants` store the edge graph: the calls of its operators, and the constants of
    these calls. `reference` has the value of every operator in the edge graph, except constants, for the samples
    `chosen` (safetensors, keys `<sample>/<operator index>`). `outputs_edge` has the final outputs of the edge graph for
    all samples, and `outputs_lowered` and `outputs_designed` those of these rungs.
    """

    quantized: QuantizedMethod
    debug_programs: tuple[DebugProgram, ...]  # one for all operators, or one per part; none if none was requested
    etrecord: Blob | None
    input_qparams: tuple[Quantization | None, ...]  # one per input of the model; None for an unquantized input
    output_operators: tuple[int | None, ...]  # per output, the index of its operator; None if it is an input
    operators: tuple[Operator, ...]
    expected_tensors: tuple[ExpectedTensor, ...]  # of all debug programs
    chosen: tuple[ChosenSample, ...]  # the samples whose operators are captured, in their order
    choosable: int  # the number of samples, the first ones, among which samples to capture are chosen
    reference_calls: Blob
    reference_constants: Blob
    reference: tuple[Blob, ...]  # one per chosen sample: the values of the operators
    outputs_lowered: Blob | None = None  # None if the host cannot compute the rung
    lowered_note: str | None = None  # why there are no outputs of the rung `lowered`, or what they are
    graph_change: str | None = None  # what makes the lowered graph another function than the model; None if nothing
    outputs_edge: Blob
    design: Design
    outputs_designed: Blob | None
    designed_unavailable: str | None  # the reason why the host cannot compute the rung; None if it can
    delegation: tuple[DelegationCount, ...]
    delegated_subgraphs: int
    delegated_graph: Blob
    compile_facts: tuple[CompileFacts, ...]
    facts: ProgramFacts  # of the shipping program, read back from its bytes
    instructions: tuple[Instruction, ...] = ()  # of the shipping program
    profile: ProfileProgram | None = None  # None if it was not requested
    references: tuple[OtherReference, ...] = ()  # the requested references
    requantized: tuple[RequantizedTensor, ...] = ()  # of the debug programs
    unlogged: tuple[Unlogged, ...] = ()  # see `Division`
    weights: tuple[Weight, ...] = ()

    @property
    def weight_bits(self) -> float:
        """The number of bits of all weights. A float weight has 16 bits per element in a delegate, 32 on the CPU."""

        def element_bits(weight: Weight) -> float:
            is_delegated = any(self.operators[reader].subgraph is not None for reader in weight.readers)
            return weight.element_bits or (16 if is_delegated else 32)

        return sum(weight.elements * element_bits(weight) for weight in self.weights)

    def expected_in(self, part: int | None) -> tuple[ExpectedTensor, ...]:
        """Return the tensors that one of the debug programs is expected to log. `part`: see `Launch`."""
        return self.expected_of(None if part is None else self.debug_programs[part - 1].span)

    def expected_of(self, span: Span | None) -> tuple[ExpectedTensor, ...]:
        """Return the tensors that the debug program of a part is expected to log. `span`: None for all operators."""
        return tuple(tensor for tensor in self.expected_tensors if tensor.span == span)

    @property
    def debug_facts(self) -> ProgramFacts | None:
        """The facts of the first debug program; None if there is none."""
        return next((debug.facts for debug in self.debug_programs if debug.facts is not None), None)

    @property
    def debug_unavailable(self) -> str | None:
        """The reason why there is no debug program; None if there is one."""
        if any(debug.program is not None for debug in self.debug_programs):
            return None
        return next((debug.unavailable for debug in self.debug_programs), NOT_REQUESTED)

    @property
    def input_grids(self) -> dict[int, Quantization]:
        """The grids of the model's inputs that have one; the inputs have the indices -1, -2 and so on."""
        return {-1 - number: grid for number, grid in enumerate(self.input_qparams) if grid is not None}

    @property
    def exported(self) -> ExportedMethod:
        """The exported method that was quantized and lowered."""
        return self.quantized.exported

    def role(self, sample: int) -> SampleRole:
        """Return why the operators of a captured sample were captured."""
        roles: dict[int, SampleRole] = {choice.sample: choice.role for choice in self.chosen}
        return roles.get(sample, "worst on the device")

    def output_grid(self, output: int) -> Quantization | None:
        """Return the grid of an output of a method with states; None if it has none."""
        index = self.output_operators[output]
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

    @property
    def seconds(self) -> float:
        """How long the toolchain needed for the program, from the export to the last compilation."""
        return sum(call.seconds for call in self.made)


@dataclass(frozen=True, kw_only=True, slots=True)
class CompilerRefusal:
    """The delegate's compiler refuses a program."""

    text: str
    """The compiler's messages; the first line is enough to act on."""
    nodes: tuple[str, ...]
    """The nodes of the exported program that the messages are about, the most frequent first."""
