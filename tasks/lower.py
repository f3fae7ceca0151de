"""lower: QuantizedModel + SoC -> LoweredProgram."""

from __future__ import annotations

from dataclasses import replace

from conf.names import OperatorReference
from conf.schema import SchemeConfig, SocConfig
from tasks.errors import ProgramDiffers, ToolchainError
from tasks.records import LoweredProgram, ProfileProgram, QuantizedModel, Toolchain
from tasks.stage import stage
from tasks.storage.digest import digest
from tasks.storage.store import Store
from tasks.toolchain import entrypoints
from tasks.toolchain.backends.select import backend_of
from tasks.toolchain.readback.audit import audit, differences
from tasks.toolchain.workers.pool import WorkerPool, Zygote


def lower(
    quantized: QuantizedModel,
    scheme: SchemeConfig,
    kind: str,
    soc: SocConfig | None,
    operator_samples: int,
    dump_operators: bool,
    profile_level: int = 0,
    references: tuple[OperatorReference, ...] = (),
    _backend_code: str = "",
    *,
    store: Store,
    workers: WorkerPool,
) -> LoweredProgram:
    """Compile the shipping, the debug and the profile program, and write down what only the compiler knows.

    `references`: what operators are to be compared with besides the edge graph, `exported` and `quantized`.
    `_backend_code`: identifies the code of a backend of another vendor, for the cache key alone.

    All that does not depend on the SoC is done once for those that are lowered at the same time. A native abort while
    all three are compiled costs the debug and the profile program alone: the compile is done again without them.
    Raises ToolchainError, and ProgramDiffers when what came out is not what was asked for.
    """
    shared = (quantized, scheme, kind, operator_samples, references)
    names = quantized.exported.model, scheme.name, kind
    with workers.zygote(digest(shared), "edge", entrypoints.edge_model, *shared, store, subject=names) as edge:
        lowered = _lowered(edge, soc, dump_operators, profile_level, store)
        lowered = replace(lowered, edge_seconds=edge.seconds)
    return confirm(lowered, scheme, kind, soc, workers.identity)


def confirm(
    lowered: LoweredProgram, scheme: SchemeConfig, kind: str, soc: SocConfig | None, toolchain: Toolchain
) -> LoweredProgram:
    """Return `lowered` with every check of the programs' own bytes against the request.

    Raises ProgramDiffers where a check differs.
    """
    checks = audit(lowered, scheme, backend_of(kind), soc, toolchain)
    found = differences(checks)
    if found is not None:
        raise ProgramDiffers(
            f"the compiled program is not the one asked for, so it is not measured: {found}; "
            "the table `audit` has every check",
            checks=checks,
            log=lowered.log.sha256 if lowered.log else None,
        )
    return replace(lowered, checks=checks)


def _lowered(
    edge: Zygote, soc: SocConfig | None, dump_operators: bool, profile_level: int, store: Store
) -> LoweredProgram:
    subject = (*edge.subject, soc.name) if soc else edge.subject
    asked = "lower", entrypoints.lower_model, soc
    try:
        done = edge.call(*asked, dump_operators, profile_level, store, subject=subject)
    except ToolchainError as error:
        if not (dump_operators or profile_level) or error.signal is None:
            raise
        done = edge.call(*asked, False, 0, store, subject=subject)
        unavailable = f"compiling it ended in {error.signal.name}"
        lost = ProfileProgram(program=None, unavailable=unavailable, nodes=(), schematics=())
        return replace(
            done.value,
            debug_unavailable=unavailable if dump_operators else done.value.debug_unavailable,
            profile=lost if profile_level else None,
            log=done.log,
            seconds=done.seconds,
        )
    return replace(done.value, log=done.log, seconds=done.seconds)


def _key_inputs(quantized: QuantizedModel, scheme: SchemeConfig, *asked: object) -> object:
    """How it was quantized is in the quantized program; its name is a label."""
    return quantized, scheme.precision, scheme.quant_dtype, *asked


lower_task = stage(lower, version=8, key_inputs=_key_inputs)
