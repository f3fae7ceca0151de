"""The compilation of one program. The operators that the backend accepts are delegated, then the program is emitted."""

from dataclasses import dataclass

from executorch.exir import EdgeProgramManager, ExecutorchProgramManager

from tasks.records import ExpectedTensor
from tasks.records.keys import METHOD
from tasks.toolchain.backends.compiler import Compiler, DelegationLog
from tasks.toolchain.reference.operators import expected_instructions, logged_instruction_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """A program with the graph that it was emitted from and the log of its delegation."""

    edge: EdgeProgramManager
    program: ExecutorchProgramManager
    log: DelegationLog
    dumped: tuple[ExpectedTensor, ...]
    """The tensors that the program logs."""
    logged_bytes: int
    """An upper bound for the bytes of the logged tensors in the debug buffer."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The reason why a program could not be compiled: the toolchain's own message."""

    reason: str


def compile_edge(compiler: Compiler, edge: EdgeProgramManager, *, debug: bool) -> Compiled:
    """Delegate the operators that the backend accepts, and emit the program. Makes `edge` unusable."""
    log = DelegationLog()
    with compiler.session(debug=debug, log=log):
        for partitioner in compiler.partitioners(debug=debug, log=log):
            edge = edge.to_backend({METHOD: partitioner})
    program = edge.to_executorch()
    handles = {handle for tensor in log.dumped for handle in tensor.debug_handles}
    return Compiled(
        edge=edge,
        program=program,
        log=log,
        dumped=(*log.dumped, *expected_instructions(program, handles)),
        logged_bytes=log.logged_bytes + logged_instruction_bytes(program.exported_program()),
    )


def try_compile(compiler: Compiler, edge: EdgeProgramManager, *, debug: bool) -> Compiled | Unavailable:
    """Compile a debug or profile program. Makes `edge` unusable.

    An error of the toolchain is returned, because the shipping program can be measured without this program.
    """
    try:
        return compile_edge(compiler, edge, debug=debug)
    except (AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        # ExecuTorch cannot log the operators of every program that it can compile.
        return Unavailable(f"{type(error).__name__}: {error}")
