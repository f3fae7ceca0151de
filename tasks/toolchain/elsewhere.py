"""What the compiler refuses, and whether it compiles another scheme. Runs in a worker."""

from collections.abc import Callable, Sequence

from qnnsweep.conf.schema import SocConfig
from qnnsweep.conf.schemes import Precision, SchemeConfig
from qnnsweep.tasks.records import CompilerRefusal, ExportedMethod, LoweredProgram
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.compiler import CompilationRefused
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.compile import Unavailable, try_compile
from qnnsweep.tasks.toolchain.deterministic import make_deterministic
from qnnsweep.tasks.toolchain.edge import EdgeModel, edge_program
from qnnsweep.tasks.toolchain.quantize import quantized_program
from qnnsweep.tasks.toolchain.saved_program import load_program


def unless_refused(call: Callable[[], LoweredProgram], models: Sequence[EdgeModel]) -> LoweredProgram | CompilerRefusal:
    """Return what `call` returns; if the compiler refuses the program, the refusal with the nodes that it is about."""
    try:
        return call()
    except CompilationRefused as error:
        sources = {operator.name: operator.source_nodes for model in models for operator in model.operators}
        found = (sources[name][-1] for name in error.suspects if sources.get(name))
        return CompilerRefusal(text=str(error), nodes=tuple(dict.fromkeys(found)))


def why_refused(
    exported: ExportedMethod, scheme: SchemeConfig, kind: str, soc: SocConfig | None, store: Store
) -> str | None:
    """Return why a method without states cannot be compiled with a scheme; None if its shipping program can.

    Raises RequestError for an override that does not fit the program.
    """
    make_deterministic()
    compiler = backend_of(kind).compiler(scheme, soc)
    is_float = scheme.precision is not Precision.quantized
    program = load_program(store, exported.program) if is_float else quantized_program(exported, scheme, kind, store)
    edge = edge_program(compiler, program, exported.name)
    compiled = try_compile(compiler, edge, exported.name, debug=False)
    return compiled.reason if isinstance(compiled, Unavailable) else None
