"""What a compiled program contains, as rows. They are decoded from the bytes of the program alone."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectedMethod:
    """A method of a program."""

    method: str
    kernels: int
    """The number of kernel calls on the CPU."""
    delegates: int
    """The number of delegated subgraphs."""
    buffer_bytes: int
    """The memory that is planned for its values."""
    returns: str | None
    """The values that the method returns, if it only returns constants."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectedDelegate:
    """A delegated subgraph."""

    method: str
    subgraph: int
    backend: str
    nodes: int | None
    """The number of its nodes; null if the backend's bytes do not tell."""
    bytes: int
    sha256: str
    shared_with: str | None
    """The method that has a subgraph with the same bytes, which are stored once."""
    calls: int
    unread: str | None
    """Why the backend's bytes could not be read; null if they were, or if no reader is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectedOption:
    """An option of a delegated subgraph: what was asked, and what the compiled bytes have."""

    method: str
    subgraph: int
    option: str
    asked: str | None
    """Null if the option is known from the compiled bytes alone."""
    got: str | None
    """Null if the compiled bytes do not tell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectedTensor:
    """An input, an output, a constant or another value."""

    method: str
    subgraph: int | None
    """The delegated subgraph; null for the method itself."""
    role: str
    """`input`, `output`, `constant` or `value`."""
    name: str
    """Its name in the bytes, or the place of its first reader or of its writer: `aten::addmm.out 5, argument 2`."""
    dtype: str
    shape: tuple[int, ...]
    scale: tuple[float, ...] | None
    zero_point: tuple[int, ...] | None
    bytes: int | None
    """The size of a constant."""
    sha256: str | None
    """The digest of a constant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectedOperator:
    """A kernel call, or a node of a delegated subgraph."""

    method: str
    subgraph: int | None
    number: int
    operator: str
    arguments: str
    """The arguments that are no tensors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectedData:
    """Data that the program stores by name, for its subgraphs."""

    key: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectedProgram:
    """The contents of a program."""

    bytes: int
    methods: tuple[InspectedMethod, ...]
    delegates: tuple[InspectedDelegate, ...]
    options: tuple[InspectedOption, ...]
    tensors: tuple[InspectedTensor, ...]
    operators: tuple[InspectedOperator, ...]
    named_data: tuple[InspectedData, ...]
