"""What a finished program says of itself, read back from its bytes, and the checks of it against what was asked."""

from dataclasses import dataclass

from tasks.records.vocabulary import CheckStatus, ProgramName


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramTensor:
    """An input or output of a program. `dim_order` lists the axes from the outermost in memory to the innermost."""

    shape: tuple[int, ...]
    dtype: str
    dim_order: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphTensor:
    """An input or output of a compiled QNN graph; in a debug program every operator's value is an output.

    `dtype` is QNN's, shortened: `float32`, `int32`, `ufixed8`, `sfixed16`. `scale` and `zero_point` are those of the
    whole tensor, None where it has none or one a channel.
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    scale: float | None
    zero_point: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextFacts:
    """What a QNN context binary says of itself."""

    build: str
    soc: str
    arch: int
    vtcm_mib: int
    kernel_elements: tuple[str, ...]
    """Element types that the HTP's own kernels compute on, in QNN's words; empty where no kernel name was found."""
    tensors: tuple[GraphTensor, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DelegateFacts:
    """One delegated subgraph of a finished program. A field is None if this kind of delegate does not contain it."""

    backend: str
    size: int
    calls: int
    """How many instructions of the program call it."""
    soc: str | None = None
    arch: int | None = None
    vtcm_mib: int | None = None
    precision: str | None = None
    """`quantized` or `float16`: the flag that the HTP is started with."""
    dumps: bool | None = None
    context: ContextFacts | None = None
    unread: str | None = None
    """Why what the delegate should contain could not be read; None if all of it was read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramFacts:
    """What a finished program is, decoded from its own bytes and nothing else."""

    inputs: tuple[ProgramTensor, ...]
    outputs: tuple[ProgramTensor, ...]
    delegates: tuple[DelegateFacts, ...]
    kernel_calls: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramCheck:
    """One property that was requested of a program, and the property that the program has."""

    program: ProgramName
    """The program that was checked, shipping or debug."""
    subgraph: int | None
    """The delegated subgraph; null for a check of the whole program."""
    check: str
    """The property: SoC, architecture, precision, grid, build …"""
    subject: str | None
    """The tensor, where a check is made per tensor."""
    asked: str
    """The requested value."""
    got: str | None
    """The program's value; null where it could not be read."""
    status: CheckStatus
    """Whether the two agree."""
    reason: str | None
    """Why the program's value could not be read."""
