"""The compilation of one program. The operators that the backend accepts are delegated, then the program is emitted."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from executorch.exir import EdgeProgramManager, ExecutorchProgramManager
from torch.export import ExportedProgram

from qnnsweep.tasks.errors import raise_shortage
from qnnsweep.tasks.records import CompileFacts, ExpectedTensor
from qnnsweep.tasks.toolchain.backends.compiler import Compiler, DelegationLog
from qnnsweep.tasks.toolchain.conversion import converting
from qnnsweep.tasks.toolchain.reference.operators import expected_instructions, logged_instruction_bytes

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """A method of a compiled program, with the graph that it was emitted from and the log of its delegation."""

    method: str
    edge: EdgeProgramManager
    program: ExecutorchProgramManager
    log: DelegationLog
    dumped: tuple[ExpectedTensor, ...]
    """The tensors that the program logs."""
    logged_bytes: int
    """An upper bound for the bytes of the logged tensors in the debug buffer."""

    @property
    def graph(self) -> ExportedProgram:
        """The graph of the method, in which delegated operators have become calls of the delegate."""
        return self.edge.exported_program(self.method)


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The reason why a program could not be compiled: the toolchain's own message."""

    reason: str


@converting()
def compile_edge(
    compiler: Compiler,
    edge: EdgeProgramManager,
    method: str,
    *,
    debug: bool,
    logged: Collection[int | None] | None = None,
) -> Compiled:
    """Delegate the operators that the backend accepts, and emit the program. Makes `edge` unusable.

    `logged`: see `DelegationLog`.
    """
    log = DelegationLog(logged=logged)
    edge = _delegated(compiler, edge, method, log, debug=debug)
    return _emitted(edge, edge.to_executorch(), method, log)


def _delegated(
    compiler: Compiler, edge: EdgeProgramManager, method: str, log: DelegationLog, *, debug: bool
) -> EdgeProgramManager:
    with compiler.session(debug=debug, log=log):
        compiler.prepare(edge.exported_program(method), debug=debug, log=log)
        for partitioner in compiler.partitioners(debug=debug, log=log):
            edge = edge.to_backend({method: partitioner})
    return edge


@converting()
def compile_methods(compiler: Compiler, programs: Mapping[str, ExportedProgram]) -> list[Compiled]:
    """Compile one program with several methods, as ExecuTorch does: the subgraphs of all methods share contexts.

    `programs`: the edge programs of the methods, which become unusable. No method logs its operators, because their
    debug handles would not be unique in the program.
    """
    logs = {method: DelegationLog() for method in programs}
    session = DelegationLog()
    edge = EdgeProgramManager(dict(programs), None, compiler.compile_config())
    with compiler.session(debug=False, log=session):
        for method, log in logs.items():
            compiler.prepare(edge.exported_program(method), debug=False, log=log)
        by_method = [compiler.partitioners(debug=False, log=log) for log in logs.values()]
        for partitioners in zip(*by_method, strict=True):
            edge = edge.to_backend(dict(zip(programs, partitioners, strict=True)))
    program = edge.to_executorch()
    for number, log in enumerate(logs.values()):
        log.compile_facts = [*_facts_of(number, len(logs), session.compile_facts)]
    return [_emitted(edge, program, method, log) for method, log in logs.items()]


def _facts_of(number: int, methods: int, facts: Sequence[CompileFacts]) -> Iterator[CompileFacts]:
    """Yield the facts of one method. The compiler prints those of the first subgraphs of all methods first."""
    for subgraph, fact in enumerate(islice(facts, number, None, methods)):
        yield replace(fact, subgraph=subgraph)


def _emitted(edge: EdgeProgramManager, program: ExecutorchProgramManager, method: str, log: DelegationLog) -> Compiled:
    handles = {handle for tensor in log.dumped for handle in tensor.debug_handles}
    if log.logged is not None:  # what this program does not log, another debug program does
        handles |= {node.debug_handle for graph in log.built for node in graph if node.debug_handle is not None}
    return Compiled(
        method=method,
        edge=edge,
        program=program,
        log=log,
        dumped=(*log.dumped, *expected_instructions(program, method, handles)),
        logged_bytes=log.logged_bytes + logged_instruction_bytes(program.exported_program(method)),
    )


def try_compile(
    compiler: Compiler,
    edge: EdgeProgramManager,
    method: str,
    *,
    debug: bool,
    logged: Collection[int | None] | None = None,
) -> Compiled | Unavailable:
    """Compile a debug or profile program. Makes `edge` unusable.

    An error of the toolchain is returned, because the shipping program can be measured without this program.
    """
    # ExecuTorch cannot log the operators of every program that it can compile.
    return _tried(lambda: compile_edge(compiler, edge, method, debug=debug, logged=logged))


@converting()
def try_delegation(compiler: Compiler, edge: EdgeProgramManager, method: str) -> tuple[dict[str, str], str | None]:
    """Delegate the operators that the backend accepts, without a program. Makes `edge` unusable.

    Return the compiler's messages on the operators that it refuses, by their names, and its error, if there is one.
    """
    log = DelegationLog()
    delegated = _tried(lambda: _delegated(compiler, edge, method, log, debug=False))
    return log.refusals, delegated.reason if isinstance(delegated, Unavailable) else None


def _tried(call: Callable[[], Result]) -> Result | Unavailable:
    try:
        return call()
    except (AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise_shortage(error)
        return Unavailable(f"{type(error).__name__}: {error}")
