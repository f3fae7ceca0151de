"""The stage lower: QuantizedModel + SoC -> LoweredProgram."""

import math
from dataclasses import replace

from qnnsweep.conf.schema import SocConfig
from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.errors import ProgramDiffers, ToolchainError
from qnnsweep.tasks.records import (
    Blob,
    CompilerRefusal,
    DebugProgram,
    LoweredProgram,
    ProfileProgram,
    QuantizedModel,
    StageCall,
    Toolchain,
)
from qnnsweep.tasks.records.options import LoweringOptions
from qnnsweep.tasks.repair.failed import Trials
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.digest import digest
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain import entrypoints
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.readback.audit import audit, differences
from qnnsweep.tasks.toolchain.readback.state_audit import state_checks
from qnnsweep.tasks.toolchain.workers.pool import SharedZygote, WorkerPool
from qnnsweep.tasks.toolchain.workers.supervisor import ENDLESS, most_further_s

LEAST_WITH_DEBUG_S = 600.0
"""The least limit of the processor time of a compilation of the shipping program together with others."""


def lower(
    quantized: QuantizedModel, soc: SocConfig | None, options: LoweringOptions, *, store: Store, workers: WorkerPool
) -> LoweredProgram:
    """Compile the shipping, the debug and the profile program, and record facts that only the compiler has.

    Everything that does not depend on the SoC is computed once for all SoCs that are lowered at the same time. If the
    compiler crashes, or repeats a pass without end, the compilation is repeated without the debug and the profile
    program. Raises ToolchainError if the toolchain fails, with what compiles instead if the compiler refused the
    program, and ProgramDiffers if the program is not the requested one.
    """
    scheme, kind = options.scheme, options.kind
    shared = quantized, replace(options, dump_operators=False, profile_level=0)
    names = quantized.model.name, scheme.name, kind
    silent = workers.reporting(lambda: None)
    trials = Trials(exported=quantized.exported, scheme=scheme, kind=kind, soc=soc, store=store, workers=silent)
    try:
        with workers.zygote(digest(shared), "edge", entrypoints.edge_models, *shared, store, subject=names) as edge:
            lowered = _compile(edge, quantized, soc, options, store)
    except ToolchainError as error:
        if (named := trials.named(error)) is not None:
            raise named from error
        raise
    if isinstance(lowered, tuple):  # the edge programs, which need memory, are gone before others are tried
        refusal, log = lowered
        first, *more = refusal.text.splitlines()
        compiles = trials.what_compiles(refusal.nodes)
        text = "\n".join([f"lower failed: RuntimeError: {first}{compiles}", *more])
        raise ToolchainError(text, stage="lower", cause="RuntimeError", log=log.sha256)
    return confirm(lowered, scheme, kind, soc, workers.identity)


def confirm(
    lowered: LoweredProgram, scheme: SchemeConfig, kind: str, soc: SocConfig | None, toolchain: Toolchain
) -> LoweredProgram:
    """Check the programs against the request, and return `lowered` with the checks. Raises ProgramDiffers."""
    of_states = state_checks(lowered)
    checks = tuple(
        check
        for method in lowered.methods
        for check in (
            *audit(method, scheme, backend_of(kind), soc, toolchain),
            *(row for row in of_states if row.method == method.exported.method),
        )
    )
    if (differing := differences(checks)) is not None:
        raise ProgramDiffers(
            f"the compiled program is not the requested one, so it is not measured: {differing}; "
            "the table `audit` has every check",
            checks=checks,
            log=next((call.log.sha256 for call in lowered.made[-1:] if call.log), None),
        )
    return replace(lowered, checks=checks)


def _compile(
    edge: SharedZygote, quantized: QuantizedModel, soc: SocConfig | None, options: LoweringOptions, store: Store
) -> LoweredProgram | tuple[CompilerRefusal, Blob]:
    subject = (*edge.zygote.subject, soc.name) if soc else edge.zygote.subject
    arguments, has_more = (quantized.model, soc), bool(options.dump_operators or options.profile_level)
    limit = most_further_s(sum(call.seconds for call in quantized.made), LEAST_WITH_DEBUG_S) if has_more else math.inf
    try:
        given = entrypoints.lower_unless_refused, *arguments, options, store
        result = edge.call("lower", *given, subject=subject, most_cpu_s=limit)
        if isinstance(result.value, CompilerRefusal):
            return result.value, result.log
        lowered = result.value
    except ToolchainError as error:
        if not has_more or (error.signal is None and error.cause != ENDLESS):
            raise
        plain = replace(options, dump_operators=False, profile_level=0)
        result = edge.call("lower", entrypoints.lower_model, *arguments, plain, store, subject=subject)
        how = (
            f"had no end after {limit:g} s of processor time"
            if error.signal is None
            else f"ended in {error.signal.name}"
        )
        unavailable = f"the compilation with the debug or profile program {how}"
        profile = ProfileProgram(program=None, unavailable=unavailable, nodes=(), schematics=())
        debug = (DebugProgram(program=None, unavailable=unavailable),) if options.dump_operators else ()
        methods = (
            replace(method, debug_programs=debug, profile=profile if options.profile_level else None)
            for method in result.value.methods
        )
        lowered = replace(result.value, methods=tuple(methods))
    calls = (
        StageCall(stage="edge", seconds=edge.zygote.seconds),
        StageCall(stage="lower", seconds=result.seconds, log=result.log),
    )
    return replace(lowered, made=(*quantized.made, *calls))


def _key_inputs(quantized: QuantizedModel, soc: SocConfig | None, options: LoweringOptions) -> object:
    """Return what the result depends on.

    The scheme's name has no effect. Scheme options that are left out here have already had their effect in `quantized`.
    """
    asked = options.scheme
    scheme = SchemeConfig(name="", precision=asked.precision, quant_dtype=asked.quant_dtype, overrides=asked.overrides)
    return quantized, soc, replace(options, scheme=scheme)


lower_task = stage(lower, version=33, key_inputs=_key_inputs)
