"""lower: QuantizedModel + SoC -> LoweredProgram."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conf.schema import BackendKind, SchemeConfig, SocConfig
from tasks.errors import ProgramDiffers, ToolchainError
from tasks.records import LoweredProgram, QuantizedModel, Toolchain
from tasks.stage import stage
from tasks.storage.store import Store
from tasks.toolchain import calls
from tasks.toolchain.audit import audit, differences
from tasks.toolchain.child import Children


def lower(
    quantized: QuantizedModel,
    scheme: SchemeConfig,
    kind: BackendKind,
    soc: SocConfig | None,
    operator_samples: int,
    dump_operators: bool,
    *,
    store: Store,
    children: Children,
) -> LoweredProgram:
    """Compile the shipping and the debug program, and write down what only the compiler knows.

    A native abort while the debug program is compiled costs the debug program alone: the compile is done again
    without it. Raises ToolchainError, and ProgramDiffers when what came out is not what was asked for.
    """
    lowered = _lowered((quantized, scheme, kind, soc, operator_samples), dump_operators, store, children)
    confirm(lowered, scheme, kind, soc, children.identity)
    return lowered


def confirm(
    lowered: LoweredProgram, scheme: SchemeConfig, kind: BackendKind, soc: SocConfig | None, toolchain: Toolchain
) -> None:
    """Raise ProgramDiffers unless the programs' own bytes agree with the request, as far as they can be read."""
    checks = audit(lowered, scheme, kind, soc, toolchain.qnn)
    found = differences(checks)
    if found is not None:
        raise ProgramDiffers(
            f"the compiled program is not the one asked for, so it is not measured: {found}; "
            "the table `audit` has every check",
            checks=checks,
            log=lowered.log.sha256 if lowered.log else None,
        )


def _lowered(fixed: tuple[Any, ...], dump_operators: bool, store: Store, children: Children) -> LoweredProgram:
    try:
        done = children.call("lower", calls.lower_model, *fixed, dump_operators, store)
    except ToolchainError as error:
        if not (dump_operators and error.cause.startswith("SIG")):
            raise
        done = children.call("lower", calls.lower_model, *fixed, False, store)
        unavailable = f"compiling it ended in {error.cause}"
        return replace(done.value, debug_unavailable=unavailable, log=done.log, seconds=done.seconds)
    return replace(done.value, log=done.log, seconds=done.seconds)


lower_task = stage(lower, version=4)
