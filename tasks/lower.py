"""The stage lower: QuantizedModel + SoC -> LoweredProgram."""

from dataclasses import replace

from qnnsweep.conf.schema import SocConfig
from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.errors import ProgramDiffers, ToolchainError
from qnnsweep.tasks.records import LoweredProgram, ProfileProgram, QuantizedModel, Toolchain
from qnnsweep.tasks.records.methods import for_each_method, methods_of
from qnnsweep.tasks.records.options import LoweringOptions
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.digest import digest
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain import entrypoints
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.readback.audit import audit, differences
from qnnsweep.tasks.toolchain.readback.state_audit import state_checks
from qnnsweep.tasks.toolchain.workers.pool import SharedZygote, WorkerPool


def lower(
    quantized: QuantizedModel, soc: SocConfig | None, options: LoweringOptions, *, store: Store, workers: WorkerPool
) -> LoweredProgram:
    """Compile the shipping, the debug and the profile program, and record facts that only the compiler has.

    Everything that does not depend on the SoC is computed once for all SoCs that are lowered at the same time. If the
    compiler crashes, the compilation is repeated without the debug and the profile program. Raises ToolchainError if
    the toolchain fails, and ProgramDiffers if the program is not the requested one.
    """
    scheme, kind = options.scheme, options.kind
    shared = quantized, replace(options, dump_operators=False, profile_level=0)
    names = quantized.exported.model, scheme.name, kind
    with workers.zygote(digest(shared), "edge", entrypoints.edge_models, *shared, store, subject=names) as edge:
        lowered = _compile(edge, soc, options, store)
        lowered = for_each_method(lowered, lambda method: replace(method, edge_seconds=edge.zygote.seconds))
    return confirm(lowered, scheme, kind, soc, workers.identity)


def confirm(
    lowered: LoweredProgram, scheme: SchemeConfig, kind: str, soc: SocConfig | None, toolchain: Toolchain
) -> LoweredProgram:
    """Check the programs against the request, and return `lowered` with the checks. Raises ProgramDiffers."""
    audited = for_each_method(
        lowered, lambda method: replace(method, checks=audit(method, scheme, backend_of(kind), soc, toolchain))
    )
    of_states = state_checks(methods_of(audited))
    audited = for_each_method(
        audited,
        lambda method: replace(
            method,
            checks=(*method.checks, *(row for row in of_states if row.method == method.quantized.exported.method)),
        ),
    )
    checks = tuple(check for method in methods_of(audited) for check in method.checks)
    if (differing := differences(checks)) is not None:
        raise ProgramDiffers(
            f"the compiled program is not the requested one, so it is not measured: {differing}; "
            "the table `audit` has every check",
            checks=checks,
            log=lowered.log.sha256 if lowered.log else None,
        )
    return audited


def _compile(edge: SharedZygote, soc: SocConfig | None, options: LoweringOptions, store: Store) -> LoweredProgram:
    subject = (*edge.zygote.subject, soc.name) if soc else edge.zygote.subject
    try:
        result = edge.call("lower", entrypoints.lower_model, soc, options, store, subject=subject)
    except ToolchainError as error:
        if not (options.dump_operators or options.profile_level) or error.signal is None:
            raise
        plain = replace(options, dump_operators=False, profile_level=0)
        result = edge.call("lower", entrypoints.lower_model, soc, plain, store, subject=subject)
        unavailable = f"the compilation with the debug or profile program ended in {error.signal.name}"
        profile = ProfileProgram(program=None, unavailable=unavailable, nodes=(), schematics=())
        result = replace(
            result,
            value=for_each_method(
                result.value,
                lambda method: replace(
                    method,
                    debug_unavailable=unavailable if options.dump_operators else method.debug_unavailable,
                    profile=profile if options.profile_level else None,
                ),
            ),
        )
    return replace(result.value, log=result.log, seconds=result.seconds)


def _key_inputs(quantized: QuantizedModel, soc: SocConfig | None, options: LoweringOptions) -> object:
    """Return what the result depends on.

    The scheme's name has no effect. Scheme options that are left out here have already had their effect in `quantized`.
    """
    asked = options.scheme
    scheme = SchemeConfig(name="", precision=asked.precision, quant_dtype=asked.quant_dtype, overrides=asked.overrides)
    return quantized, soc, replace(options, scheme=scheme)


lower_task = stage(lower, version=13, key_inputs=_key_inputs)
