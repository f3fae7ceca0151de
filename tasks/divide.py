"""The stage divide: LoweredProgram + Division -> LoweredProgram with several debug programs."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from qnnsweep.conf.schema import SocConfig
from qnnsweep.tasks.errors import ToolchainError
from qnnsweep.tasks.lower import confirm
from qnnsweep.tasks.records import DebugProgram, Division, LoweredMethod, LoweredProgram, QuantizedModel, Span
from qnnsweep.tasks.records.debugged import Debugged, joined, part_of
from qnnsweep.tasks.records.options import LoweringOptions
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.digest import digest
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain import entrypoints
from qnnsweep.tasks.toolchain.workers.pool import WorkerPool
from qnnsweep.tasks.toolchain.workers.supervisor import CallResult, most_further_s


def divide(
    lowered: LoweredProgram,
    quantized: QuantizedModel,
    soc: SocConfig | None,
    options: LoweringOptions,
    divisions: tuple[Division | None, ...],
    *,
    store: Store,
    workers: WorkerPool,
) -> LoweredProgram:
    """Compile a debug program per part of the operators, each in a process of its own.

    `lowered`: the program whose debug programs do not serve; those of the same parts are kept. `divisions`: per method;
    None for a method whose debug programs stay as they are. If the toolchain fails for a part, or takes too long, its
    debug program says why. Raises ToolchainError if the edge program cannot be made again, and ProgramDiffers if a
    program is not the requested one.
    """
    shared = quantized, replace(options, dump_operators=False, profile_level=0)
    names = quantized.model.name, options.scheme.name, options.kind
    subject = (*names, soc.name) if soc else names
    with (
        workers.zygote(digest(shared), "edge", entrypoints.edge_models, *shared, store, subject=names) as edge,
        ThreadPoolExecutor(workers.parallel) as threads,  # which only wait
    ):

        def compiled(number: int, span: Span) -> CallResult[Debugged]:
            given = number, span, soc, options, store
            limit = most_further_s(lowered.seconds)
            return edge.call("divide", entrypoints.debug_program, *given, subject=subject, most_cpu_s=limit)

        parts = {
            (number, span): threads.submit(_part, method, span, partial(compiled, number, span))
            for number, (method, division) in enumerate(zip(lowered.methods, divisions, strict=True))
            for span in (division.spans if division else ())
        }
        methods = [
            joined(method, [parts[number, span].result() for span in division.spans], division.unlogged)
            if division
            else method
            for number, (method, division) in enumerate(zip(lowered.methods, divisions, strict=True))
        ]
    return confirm(replace(lowered, methods=tuple(methods)), options.scheme, options.kind, soc, workers.identity)


def _part(method: LoweredMethod, span: Span, compiled: Callable[[], CallResult[Debugged]]) -> Debugged:
    """Return the debug program of a part: the present one if there is one, otherwise a new one."""
    for debug in method.debug_programs:
        if debug.span == span and debug.program is not None:
            return part_of(method, debug)
    try:
        return compiled().value
    except ToolchainError as error:
        return Debugged(program=DebugProgram(program=None, unavailable=str(error), span=span))


def _key_inputs(
    lowered: LoweredProgram,
    _quantized: QuantizedModel,
    soc: SocConfig | None,
    _options: LoweringOptions,
    divisions: tuple[Division | None, ...],
) -> object:
    """Return what the result depends on. `lowered` was made from the quantized model with the options."""
    return lowered, soc, divisions


divide_task = stage(divide, version=3, key_inputs=_key_inputs)
