"""Asked against got: a finished program's own facts next to what the cell asked for, one row a check."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from conf.schema import BackendKind, Precision, SchemeConfig, SocConfig
from tasks.records import (
    DelegateFacts,
    ExpectedTensor,
    GraphTensor,
    LoweredProgram,
    ProgramCheck,
    ProgramFacts,
    ProgramTensor,
    Quantization,
    TensorSpec,
)
from tasks.records.vocabulary import ProgramName

_BACKENDS = {BackendKind.qnn: "QnnBackend", BackendKind.xnnpack: "XnnpackBackend"}
_NO_BACKEND = "none"
_QUANT_DTYPE = re.compile(r"(fp)?(\d+)a(\d+)w")
_PACKED = "the HTP compiler packs weights in a form of its own, and no library reads it back"


def audit(
    lowered: LoweredProgram, scheme: SchemeConfig, kind: BackendKind, soc: SocConfig | None, qnn: str
) -> tuple[ProgramCheck, ...]:
    """Every check of the shipping program, then of the debug program; `qnn` is the build id of the libraries here."""

    def checked(program: ProgramName, facts: ProgramFacts) -> Iterator[ProgramCheck]:
        yield from _interface(program, facts, lowered)
        yield from _partitions(program, facts, lowered, kind)
        if kind is BackendKind.qnn and soc is not None:
            for subgraph, delegate in enumerate(facts.delegates):
                yield from _delegate(program, subgraph, delegate, scheme, soc, qnn)
            yield from _elements(program, facts.delegates, scheme)

    checks = list(checked("shipping", lowered.facts))
    if lowered.debug_facts is not None:
        checks += checked("debug", lowered.debug_facts)
        checks += _grids(lowered.debug_facts.delegates, lowered.expected_tensors)
    return tuple(checks)


def differences(checks: Sequence[ProgramCheck]) -> str | None:
    """What differs, in one line; None where nothing does."""
    found = [_sentence(check) for check in checks if check.status == "differs"]
    return "; ".join(found) or None


def _sentence(check: ProgramCheck) -> str:
    where = (
        f"{check.program} program" if check.subgraph is None else f"{check.program} program, subgraph {check.subgraph}"
    )
    subject = "" if check.subject is None else f" of {check.subject}"
    return f"{where}: {check.check}{subject}: asked {check.asked}, got {check.got}"


def _interface(program: ProgramName, facts: ProgramFacts, lowered: LoweredProgram) -> Iterator[ProgramCheck]:
    exported = lowered.quantized.exported
    for role, specs, tensors in (
        ("inputs", exported.inputs, facts.inputs),
        ("outputs", exported.outputs, facts.outputs),
    ):
        yield _check(program, None, f"number of {role}", None, str(len(specs)), str(len(tensors)))
        for spec, tensor in zip(specs, tensors, strict=False):
            yield _check(program, None, role.removesuffix("s"), spec.name, _asked_tensor(spec), _got_tensor(tensor))


def _asked_tensor(spec: TensorSpec) -> str:
    """A model's tensor as a program must take it: dense, the last axis innermost."""
    return f"{spec.dtype}{list(spec.shape)} in axis order {list(range(len(spec.shape)))}"


def _got_tensor(tensor: ProgramTensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)} in axis order {list(tensor.dim_order)}"


def _partitions(
    program: ProgramName, facts: ProgramFacts, lowered: LoweredProgram, kind: BackendKind
) -> Iterator[ProgramCheck]:
    count = len(facts.delegates)
    yield _check(program, None, "delegated subgraphs", None, str(lowered.delegated_subgraphs), str(count))
    backend = _BACKENDS.get(kind, _NO_BACKEND)
    for subgraph, delegate in enumerate(facts.delegates):
        yield _check(program, subgraph, "backend", None, backend, delegate.backend)
        yield _check(program, subgraph, "calls", None, "1", str(delegate.calls))


def _delegate(
    program: ProgramName, subgraph: int, delegate: DelegateFacts, scheme: SchemeConfig, soc: SocConfig, qnn: str
) -> Iterator[ProgramCheck]:
    """The options that the delegate is started with, then what its context binary says of itself."""
    context = delegate.context
    asked: list[tuple[str, str, str | None]] = [
        ("SoC in the options", soc.name, delegate.soc),
        ("arch in the options", _arch(soc.arch), None if delegate.arch is None else _arch(delegate.arch)),
        ("precision flag", _precision(scheme), delegate.precision),
        ("dumps tensors", str(program == "debug"), None if delegate.dumps is None else str(delegate.dumps)),
        ("SoC in the context", soc.name, context.soc if context else None),
        ("arch in the context", _arch(soc.arch), _arch(context.arch) if context else None),
        ("VTCM of the graph", f"{soc.vtcm_mib} MiB", f"{context.vtcm_mib} MiB" if context else None),
        ("QNN build", qnn, context.build if context else None),
    ]
    for check, wanted, got in asked:
        yield _check(program, subgraph, check, None, wanted, got, reason=delegate.unread)


def _arch(arch: int) -> str:
    return f"v{arch}"


def _precision(scheme: SchemeConfig) -> str:
    """The HTP's flag: also schemes of float activations and quantized weights need it."""
    float_activations = scheme.precision is Precision.float16 or _bits(scheme)[0] == "float16"
    return "float16" if float_activations else "quantized"


def _bits(scheme: SchemeConfig) -> tuple[str, str]:
    """Activation and weight element of a scheme: `float16`, or `fixed` and a number of bits."""
    found = _QUANT_DTYPE.match(scheme.quant_dtype or "")
    if found is None:
        return scheme.precision.value, scheme.precision.value
    floating, activation, weight = found.groups()
    return (f"float{activation}" if floating else f"fixed{activation}"), f"fixed{weight}"


def _elements(program: ProgramName, delegates: Sequence[DelegateFacts], scheme: SchemeConfig) -> Iterator[ProgramCheck]:
    """The scheme's bits, from the kernels of all subgraphs together: one alone may have nothing but indices."""
    if not delegates:
        return
    activation, weight = _bits(scheme)
    kernels = sorted({element for each in delegates if each.context for element in each.context.kernel_elements})
    reason = next((each.unread for each in delegates if each.unread), "the context binary names no kernel")
    yield _check(
        program,
        None,
        "activation element of the kernels",
        None,
        activation,
        ", ".join(kernels) or None,
        agrees=lambda: activation in {element.lstrip("us") for element in kernels},
        reason=reason,
    )
    yield _check(program, None, "weight element", None, weight, None, reason=_PACKED)


def _grids(delegates: Sequence[DelegateFacts], dumped: Sequence[ExpectedTensor]) -> Iterator[ProgramCheck]:
    """Every tensor that the debug program logs: the grid by which its codes will be read, and the grid it has."""
    compiled = {
        tensor.name: (subgraph, tensor)
        for subgraph, delegate in enumerate(delegates)
        if delegate.context
        for tensor in delegate.context.tensors
    }
    for asked in dumped:
        grid = asked.quantization
        if grid is None or len(grid.scale) != 1:
            continue
        subgraph, tensor = compiled.get(asked.identifier, (None, None))
        yield _check(
            "debug",
            subgraph,
            "grid",
            asked.identifier,
            _asked_grid(grid),
            None if tensor is None else _got_grid(tensor),
            agrees=lambda grid=grid, tensor=tensor: tensor is not None and _same_grid(grid, tensor),
            reason="the debug program's context does not list it",
        )


def _asked_grid(grid: Quantization) -> str:
    return f"fixed{_grid_bits(grid)} scale {grid.scale[0]:.6g} zero point {grid.zero_point[0]}"


def _got_grid(tensor: GraphTensor) -> str:
    if tensor.scale is None:
        return tensor.dtype
    return f"{tensor.dtype.lstrip('us')} scale {tensor.scale:.6g} zero point {tensor.zero_point}"


def _same_grid(grid: Quantization, tensor: GraphTensor) -> bool:
    """QNN holds a scale in 32 bits."""
    return (
        tensor.scale is not None
        and tensor.dtype.lstrip("us") == f"fixed{_grid_bits(grid)}"
        and tensor.zero_point == grid.zero_point[0]
        and float(np.float32(grid.scale[0])) == tensor.scale
    )


def _grid_bits(grid: Quantization) -> int:
    """Bits of QNN's type that holds all codes. torch's own type is no guide: it keeps 16-bit codes in 32 bits."""
    return next(bits for bits in (8, 16, 32, 64) if grid.quant_max - grid.quant_min < 2**bits)


def _check(
    program: ProgramName,
    subgraph: int | None,
    check: str,
    subject: str | None,
    asked: str,
    got: str | None,
    *,
    agrees: Callable[[], bool] | None = None,
    reason: str | None = None,
) -> ProgramCheck:
    met = got is not None and (asked == got if agrees is None else agrees())
    return ProgramCheck(
        program=program,
        subgraph=subgraph,
        check=check,
        subject=subject,
        asked=asked,
        got=got,
        status="met" if met else "unread" if got is None else "differs",
        reason=reason if got is None else None,
    )
