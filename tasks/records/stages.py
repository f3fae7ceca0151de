"""What crosses a stage border: frozen records of values and blobs.

A record is the whole truth a later stage may know. A field with `IDENTITY_NEUTRAL` metadata (logs, seconds, names) is
kept in the record but left out of its digest: it does not change what the record *is*.
"""

from dataclasses import dataclass, field
from typing import Any

from tasks.records.hints import Seconds
from tasks.records.program import ProgramCheck, ProgramFacts
from tasks.records.vocabulary import OperatorStatus, ProgramName, Reference

IDENTITY_NEUTRAL: dict[str, Any] = {"identity": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class Blob:
    """Bytes in the store, named by their content."""

    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolchain:
    """What compiled: part of every cache key that depends on the toolchain."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """A program's input or output: `dtype` is torch's name without the prefix (`float32`, `int64`)."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantization:
    """Affine quantization of one tensor: real = (code - zero_point) * scale.

    Per tensor: one scale and `axis` None. Per channel: one scale a channel along `axis` of PyTorch's layout.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None
    quant_min: int
    quant_max: int
    dtype: str


@dataclass(frozen=True, kw_only=True, slots=True)
class InputMistake:
    """One way in which a program could take the model's inputs wrongly, and the sample that tells it best."""

    name: str
    sample: int
    refused: str | None
    """Why eager PyTorch has no answer to it; None when it has one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedModel:
    """A model as torch.export sees it, with its inputs and what eager PyTorch answers to them.

    `calibration` and `evaluation` are safetensors files with keys `<sample>/<tensor name>`; `outputs_eager` and
    `outputs_exported`, what the traced program answers on the host, have keys `<sample>/<output index>`.
    """

    model: str = field(metadata=IDENTITY_NEUTRAL)
    """What it was called when it was exported."""
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
    mistaken_outputs: Blob
    """Eager PyTorch's answers after each of `input_mistakes`; safetensors, keys `<mistake index>/<output index>`."""
    weights: str
    """Where the weights come from: `pretrained`, `trained`, `random`, `unstated`, or a word of the model's own."""
    log: Blob | None = field(default=None, metadata=IDENTITY_NEUTRAL)
    seconds: float = field(default=0.0, metadata=IDENTITY_NEUTRAL)


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizedModel:
    """The graph that gets lowered: converted by pt2e, or the exported program itself for a float scheme.

    `outputs_quantized` are the converted graph's answers on the host to the evaluation samples.
    """

    exported: ExportedModel
    scheme: str = field(metadata=IDENTITY_NEUTRAL)
    """What it was called when it was quantized."""
    program: Blob
    quantized: bool
    outputs_quantized: Blob
    log: Blob | None = field(default=None, metadata=IDENTITY_NEUTRAL)
    seconds: float = field(default=0.0, metadata=IDENTITY_NEUTRAL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    """One node of the reference: the edge graph after the backend's transforms, before delegation.

    (`debug_handle`, `output_index`) is its only name on the device side.
    """

    index: int
    name: str
    target: str
    debug_handle: int | None
    output_index: int
    source_nodes: tuple[str, ...]
    module_path: str
    stack_trace: str
    shape: tuple[int, ...] | None
    """None for a node whose value is a tuple: its outputs are the getitem nodes that follow."""
    dtype: str | None
    quantization: Quantization | None
    axis_order: tuple[int, ...] | None
    subgraph: int | None
    """Which delegated subgraph the lowering put it into, counted in graph order; None stays on the CPU."""
    constant: bool
    """Computed from parameters alone: folded by the compiler, never seen at run time."""
    unused: bool
    """An output of a call that nothing reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedTensor:
    """A tensor the debug program is expected to log, under the name the delegate gives it.

    `identifier` is `<node>@<output index>` inside a QNN delegate; for what the runtime itself logs it is
    `instruction:<id>:<position>`. `axis_order` is the permutation that took PyTorch's layout to the device's.
    """

    identifier: str
    debug_handles: tuple[int, ...]
    output_index: int
    quantization: Quantization | None
    axis_order: tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DelegationCount:
    """How often one operator type went to the delegate and stayed on the CPU, and what the compiler said."""

    operator: str
    delegated: int
    not_delegated: int
    refusals: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileFacts:
    """What the HTP compiler printed about one delegated subgraph of the shipping program, in bytes."""

    subgraph: int
    spill_bytes: int
    fill_bytes: int
    write_total_bytes: int
    read_total_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Instruction:
    """One instruction of a program, as the runtime's log numbers it: a kernel, or the call of a delegate."""

    id: int
    debug_handles: tuple[int, ...]  # of a delegate's call: of all operators in its subgraph
    backend: str | None  # the delegate's own name (`QnnBackend`); None for a kernel
    subgraph: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DelegatedNode:
    """A node of the graph that a delegate really built: its name is what the delegate logs its cycles under."""

    subgraph: int | None
    name: str
    debug_handle: int | None
    users: tuple[str, ...]  # names of the nodes that read it; `output` for the graph's end


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileProgram:
    """The shipping program compiled once more, with its delegate's log of operators switched on."""

    program: Blob | None
    unavailable: str | None  # why there is none, in the toolchain's own words
    nodes: tuple[DelegatedNode, ...]
    schematics: tuple[Blob, ...]  # what level 3 makes the HTP compiler write of each subgraph, in the order compiled


@dataclass(frozen=True, kw_only=True, slots=True)
class Counterpart:
    """What an operator stands for in another graph: its nodes in their order, of which the last has its value."""

    nodes: tuple[str, ...]
    status: OperatorStatus | None  # why there is no value to compare with; None where there is one


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherReference:
    """A graph besides the edge graph that operators are compared with: `exported` or `quantized`.

    `values`: safetensors, keys `<sample>/<operator index>`, of the operators whose counterpart has no status.
    """

    name: Reference
    values: Blob
    counterparts: tuple[Counterpart, ...]  # one an operator, in their order
    unclaimed: tuple[Operator, ...]  # its nodes that no operator stands for, numbered behind the operators


@dataclass(frozen=True, kw_only=True, slots=True)
class LoweredProgram:
    """One compiled cell: the program that ships, the program that explains it, and all that is known of both.

    `reference_calls` and `reference_constants` are the edge graph itself: each operator's call, the tensors they share.
    `reference` holds the edge graph's value of every operator but the constants for the first `operator_samples`
    evaluation samples (safetensors, keys `<sample>/<operator index>`); `outputs_edge` its final outputs for them all.
    """

    quantized: QuantizedModel
    backend: str
    soc: str | None
    program: Blob
    debug_program: Blob | None
    debug_unavailable: str | None
    """Why there is no debug program, in the toolchain's own words; None when there is one."""
    bundled_program: Blob | None
    etrecord: Blob | None
    input_qparams: tuple[Quantization | None, ...]
    """The grid each of the model's inputs is put on, in their order; None where it is taken as it is."""
    operators: tuple[Operator, ...]
    expected_tensors: tuple[ExpectedTensor, ...]
    operator_samples: int
    reference_calls: Blob
    reference_constants: Blob
    reference: Blob
    outputs_edge: Blob
    delegation: tuple[DelegationCount, ...]
    delegated_subgraphs: int
    delegated_graph: Blob
    compile_facts: tuple[CompileFacts, ...]
    debug_buffer_bytes: int
    """Bytes one execution of the debug program logs at most, from the graph's own tensor metadata."""
    facts: ProgramFacts
    """What the shipping program is, read back from its bytes."""
    debug_facts: ProgramFacts | None
    checks: tuple[ProgramCheck, ...] = field(default=(), metadata=IDENTITY_NEUTRAL)
    """Every check of the programs' facts against the request."""
    instructions: tuple[Instruction, ...] = ()  # the shipping program's
    profile: ProfileProgram | None = None  # None where it was not asked for
    references: tuple[OtherReference, ...] = ()  # those that were asked for
    log: Blob | None = field(default=None, metadata=IDENTITY_NEUTRAL)
    seconds: float = field(default=0.0, metadata=IDENTITY_NEUTRAL)
    edge_seconds: float = field(default=0.0, metadata=IDENTITY_NEUTRAL)  # once for all SoCs that shared it


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One start of the runner: which program on which samples, and whether it dumps intermediate tensors.

    `input_list` names blobs by their place in a device's work folder, as seen from a launch's own folder.
    """

    name: ProgramName
    program: Blob
    input_list: Blob
    samples: int
    debug: bool
    debug_buffer_bytes: int
    iterations: int
    warm_up: int
    performance_mode: int = 0
    """The runner's `--htp_performance_mode`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """All that a device needs to run one cell: a manifest of blobs, and how to start them."""

    runner: Blob
    blobs: tuple[Blob, ...]
    """Everything to be on the device, the runner included, each once."""
    launches: tuple[Launch, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """A bundle's blobs on a device, below `work_folder`."""

    device: str
    work_folder: str
    bundle: Bundle
    bytes_sent: int
    blobs_sent: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One command that ran on a device."""

    argv: tuple[str, ...]
    """The command and its arguments."""
    exit_code: int
    """The exit code; minus the signal's number where a signal ended the command."""
    seconds: Seconds
    """Duration of the command."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchResult:
    """What one start of the runner left in `folder` on the device, still there."""

    launch: Launch
    folder: str = field(metadata=IDENTITY_NEUTRAL)
    command: Command = field(metadata=IDENTITY_NEUTRAL)
    latencies_ms: tuple[float, ...] = field(metadata=IDENTITY_NEUTRAL)
    """Mean milliseconds an inference took, one entry a sample, as the runner printed them."""
    log: Blob = field(metadata=IDENTITY_NEUTRAL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """All launches of a bundle on one device."""

    device: str
    results: tuple[LaunchResult, ...]
    outputs: tuple[TensorSpec, ...]
    bytes_sent: int = field(default=0, metadata=IDENTITY_NEUTRAL)
    """What had to be sent before: 0 where the device had all of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture:
    """What came back from a device, every byte verified on arrival.

    `outputs` and `outputs_debug` are safetensors with keys `<sample>/<output index>`.
    """

    execution: Execution
    outputs: Blob
    outputs_debug: Blob | None
    etdump: Blob
    """The shipping program's: its times are the ones that count."""
    etdump_debug: Blob | None
    debug_buffer: Blob | None
    outputs_profile: Blob | None = None
    etdump_profile: Blob | None = None
    measured_run: str | None = field(default=None, metadata=IDENTITY_NEUTRAL)
    """The run that measured it; another may have reused it."""
