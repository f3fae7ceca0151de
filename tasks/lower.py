"""lower: QuantizedModel + SoC -> LoweredProgram."""

from __future__ import annotations

from dataclasses import replace

from conf.schema import BackendKind, SchemeConfig, SocConfig
from tasks.errors import ToolchainError
from tasks.records import LoweredProgram, QuantizedModel
from tasks.stage import stage
from tasks.storage.store import Store
from tasks.toolchain import calls
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
    without it. Raises ToolchainError.
    """
    fixed = (quantized, scheme, kind, soc, operator_samples)
    try:
        done = children.call("lower", calls.lower_model, *fixed, dump_operators, store)
    except ToolchainError as error:
        if not (dump_operators and error.cause.startswith("SIG")):
            raise
        done = children.call("lower", calls.lower_model, *fixed, False, store)
        unavailable = f"compiling it ended in {error.cause}"
        return replace(done.value, debug_unavailable=unavailable, log=done.log, seconds=done.seconds)
    return replace(done.value, log=done.log, seconds=done.seconds)


lower_task = stage(lower, version=2)
