"""The base class of compilers. In a worker, a compiler does a backend's steps from torch.export to the program."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from executorch.exir import EdgeCompileConfig
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import Quantizer

from qnnsweep.conf.schema import SocConfig
from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.records import CompileFacts, DelegatedNode, ExpectedTensor, Quantization, WrittenGrid
from qnnsweep.tasks.toolchain.backends.kernel_call import KernelCall
from qnnsweep.tasks.toolchain.requantized import Requantization


@dataclass(slots=True)
class DelegationLog:
    """The record of a backend's delegation of one graph."""

    logged: Collection[int | None] | None = None
    """The debug handles of the operators that a debug program logs, and None for values without one; None for all."""
    refusals: dict[str, str] = field(default_factory=dict)
    """Per node name, the compiler's message on why the node stays on the CPU."""
    dumped: list[ExpectedTensor] = field(default_factory=list)
    """The tensors that the delegate will log by name if its program dumps tensors."""
    requantized: list[Requantization] = field(default_factory=list)
    """The nodes that the delegate inserted to convert values to other grids. `dumped` has their tensors too."""
    logged_bytes: int = 0
    """An upper bound for the bytes that the tensors of `dumped` occupy in the debug buffer."""
    compile_facts: list[CompileFacts] = field(default_factory=list)
    built: list[list[DelegatedNode]] = field(default_factory=list)
    """One list of nodes per graph that the delegate built, in compilation order. A node's `subgraph` is still None."""
    schematics: list[bytes] = field(default_factory=list)
    compiling: list[Node] = field(default_factory=list)
    """The calls of the graph that the delegate built last."""
    compiling_since: int = 0
    """The length of this process's output when the delegate began to build that graph."""


class CompilationRefused(RuntimeError):
    """The delegate's compiler refuses a graph.

    Attributes: `suspects` (the names of the nodes that the compiler's messages are about, the most frequent first).
    """

    def __init__(self, message: str, suspects: Sequence[str]) -> None:
        super().__init__(message)
        self.suspects = suspects


class Compiler(ABC):
    """The lowering steps that a backend defines, for one scheme and one SoC. The default steps delegate nothing."""

    has_debug_program: bool = False
    """Whether the delegate logs its operators only in a program that is compiled with `debug=True`."""
    shares_biases: bool = False
    """Whether a bias that several calls read has one grid, although each call multiplies it by grids of its own."""
    largest_weight: int | None = None
    """The largest quantized 16-bit weight that the device's kernels hold; None if they hold all."""

    def __init__(self, scheme: SchemeConfig, soc: SocConfig | None) -> None:
        self._scheme = scheme
        self._soc = soc

    @abstractmethod
    def quantizer(self, scheme: SchemeConfig, module: GraphModule) -> Quantizer: ...

    def before_edge(self, program: ExportedProgram) -> tuple[ExportedProgram, Sequence[Any] | None]:
        """Return the program to convert to an edge program, and the passes to run on the edge program, if any."""
        return program, None

    def compile_config(self) -> EdgeCompileConfig:
        return EdgeCompileConfig()

    def partitioners(self, *, debug: bool, log: DelegationLog) -> list[Any]:
        return []

    def prepare(self, program: ExportedProgram, *, debug: bool, log: DelegationLog) -> None:  # noqa: B027 - rarely needed
        """Change an edge program before its operators are delegated, within the session."""

    def in_float16(self, overrides: Collection[int] = ()) -> bool:
        """Return whether the backend computes in float16 the values without a grid of the operators of these overrides.

        `overrides`: the indices of the overrides that select the operator; none for an input of the model.
        """
        return False

    def merges(self, target: str, arguments: Sequence[Any], reader: str) -> bool:
        """Return whether the backend merges a call, which nothing else reads, with its reader: it rounds only once.

        `target`, `arguments`: of the call. `reader`: the target of the call that reads the value. Clamps are always
        merged.
        """
        return False

    def written_grid(self, call: KernelCall) -> WrittenGrid | None:
        """Return the grid on which the device writes a call's value; None if it is that on which the value is read."""
        return None

    def profiling(self, level: int) -> "Compiler | None":
        """Return the compiler for programs that log times inside the delegate; None if such a log cannot be enabled."""
        return None

    def session(self, *, debug: bool, log: DelegationLog) -> contextlib.AbstractContextManager[None]:
        """Keep the backend's compiler open while a graph is partitioned and compiled."""
        return contextlib.nullcontext()

    def qparams(self, node: Node) -> Quantization | None:
        """Return the quantization that the backend's passes wrote into a node. A saved program does not contain it."""
        return None

    def axis_order(self, node: Node) -> tuple[int, ...] | None:
        """Return the axis order that the backend's passes gave a node's value; None if they did not change it."""
        return None
