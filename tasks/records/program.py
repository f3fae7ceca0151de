"""The facts of a compiled program, read back from its bytes, and their checks against the request."""

from dataclasses import dataclass, field

from qnnsweep.tasks.records.vocabulary import CheckStatus, ProgramName


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramTensor:
    """An input or output of a program."""

    shape: tuple[int, ...]
    dtype: str
    dim_order: tuple[int, ...]  # the axes, from the outermost in memory to the innermost


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphTensor:
    """An input or output of a compiled QNN graph. In a debug program, the value of every operator is an output."""

    name: str
    role: str
    dtype: str  # QNN's name, shortened: `float32`, `int32`, `ufixed8`, `sfixed16`
    shape: tuple[int, ...]
    scale: float | None  # of the whole tensor; None if the tensor is not quantized or is quantized per channel
    zero_point: int | None  # None where the scale is None
    graph: str  # the name of the graph, which is that of the method


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextFacts:
    """The facts in a QNN context binary."""

    build: str
    soc: str
    arch: int
    vtcm_mib: int
    optimization_level: int  # of the graphs; the lowest if they differ
    kernel_elements: tuple[str, ...]  # QNN's names of the element types of the HTP's kernels; empty if none was found
    tensors: tuple[GraphTensor, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DelegateFacts:
    """A delegated subgraph of a compiled program. A field is None if delegates of this kind lack the fact."""

    backend: str
    size: int
    calls: int  # the number of the program's instructions that call the delegate
    soc: str | None = None
    arch: int | None = None
    vtcm_mib: int | None = None
    precision: str | None = None  # `quantized` or `float16`: the flag with which the HTP is started
    dumps: bool | None = None
    context: ContextFacts | None = None
    unread: str | None = None  # why the delegate's facts could not be read; None if they were


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramFacts:
    """The facts of a compiled program, decoded only from the bytes of the program."""

    inputs: tuple[ProgramTensor, ...]
    outputs: tuple[ProgramTensor, ...]
    delegates: tuple[DelegateFacts, ...]
    kernel_calls: int
    method_index: int | None = field(default=None, metadata={"identity": "unless None"})  # None: it is the only method


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramCheck:
    """One property of a program: the requested value, and the value that the program has."""

    method: str | None = None
    """The checked method; null for a model with one method."""
    program: ProgramName
    """The program that was checked, shipping or debug."""
    subgraph: int | None
    """Number of the checked delegated subgraph; null for a check of the whole program."""
    check: str
    """The property: SoC, architecture, precision, grid, build …"""
    subject: str | None
    """The checked tensor; null if the check is not about a single tensor."""
    asked: str
    """The requested value."""
    got: str | None
    """The program's value; null if the value could not be read."""
    status: CheckStatus
    """Whether the program's value agrees with the requested value."""
    reason: str | None
    """Why the program's value could not be read, or why a value agrees although it is not the requested one."""
