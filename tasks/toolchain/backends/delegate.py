"""A delegated subgraph as a program stores it. Its backend defines what its options and its bytes mean."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileSpec:
    """An option of a delegate, in the form that the delegate's backend defines."""

    key: str
    value: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledDelegate:
    """A delegated subgraph in a program: its backend, its options, and the bytes that the backend compiled."""

    id: str
    compile_specs: tuple[CompileSpec, ...]
    processed: bytes
