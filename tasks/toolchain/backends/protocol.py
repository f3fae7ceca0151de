"""What a backend must tell the lowering: its quantizer, its passes, its partitioner, and what it saw."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from executorch.exir import EdgeCompileConfig
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantizer import Quantizer

from conf.schema import SchemeConfig
from tasks.records import CompileFacts, DelegatedNode, ExpectedTensor


@dataclass(slots=True)
class Delegation:
    """What a backend noted while it took its part of the graph."""

    refusals: dict[str, str] = field(default_factory=dict)
    """Node name to the compiler's own words on why the node stays on the CPU."""
    dumped: list[ExpectedTensor] = field(default_factory=list)
    """Tensors the delegate will log by name when its program dumps."""
    logged_bytes: int = 0
    """Bytes those tensors take in the debug buffer at most."""
    compile_facts: list[CompileFacts] = field(default_factory=list)
    built: list[list[DelegatedNode]] = field(default_factory=list)
    """The nodes of each graph that the delegate built, in the order compiled; their subgraph is not known here."""
    schematics: list[bytes] = field(default_factory=list)


class Backend(Protocol):
    has_debug_program: bool
    """A separate program is compiled to look inside the delegate."""

    def quantizer(self, scheme: SchemeConfig, module: GraphModule) -> Quantizer: ...

    def before_edge(self, program: ExportedProgram) -> tuple[ExportedProgram, Sequence[Any] | None]:
        """The program to convert, and the passes to run on its edge form."""
        ...

    def compile_config(self) -> EdgeCompileConfig: ...

    def partitioners(self, *, debug: bool, noted: Delegation) -> list[Any]: ...

    def profiling(self, level: int) -> Backend | None:
        """The same backend, whose programs log the time inside the delegate; None if it has no such log."""
        ...

    def session(self, *, debug: bool, noted: Delegation) -> contextlib.AbstractContextManager[None]:
        """Holds the backend's compiler open while a graph is partitioned and compiled."""
        ...
