"""The checks of a QNN program: the options of its delegates, and the content of their context binaries."""

from collections.abc import Iterator

import numpy as np

from qnnsweep.conf.schema import SocConfig
from qnnsweep.tasks.records import DelegateFacts, GraphTensor, Operator, ProgramCheck, Quantization
from qnnsweep.tasks.toolchain.backends.checks import AuditedProgram
from qnnsweep.tasks.toolchain.backends.qnn.elements import activation_element, needs_floats, scheme_elements
from qnnsweep.tasks.toolchain.backends.qnn.override_audit import bits, override_checks, settings_of, tensors_by_name
from qnnsweep.tasks.toolchain.data_movement import moves_data

OPTIMIZATION_LEVEL = 3
"""The level that ExecuTorch's QNN backend asks of the compiler for every graph, seen at its call of graphCreate."""
_PACKED = "the HTP compiler packs weights in a form of its own, and no library reads it back"


def qnn_checks(program: AuditedProgram) -> Iterator[ProgramCheck]:
    """Yield all checks of one QNN program."""
    assert program.soc is not None, "a QNN program is compiled for one SoC"
    for subgraph, delegate in enumerate(program.facts.delegates):
        yield from _delegate(program, subgraph, delegate, program.soc)
    if program.facts.delegates:
        yield from _elements(program)
    if program.name == "debug":
        yield from _qparams(program)
        yield from override_checks(program)


def _delegate(
    program: AuditedProgram, subgraph: int, delegate: DelegateFacts, soc: SocConfig
) -> Iterator[ProgramCheck]:
    """Yield the checks of the options that the delegate is started with, then the checks of its context binary."""
    context = delegate.context
    precision = "float16" if needs_floats(program.scheme) else "quantized"
    dumps = str(program.name == "debug")
    properties: list[tuple[str, str, str | None]] = [
        ("SoC in the options", soc.name, delegate.soc),
        ("arch in the options", f"v{soc.arch}", None if delegate.arch is None else f"v{delegate.arch}"),
        ("precision flag", precision, delegate.precision),
        ("dumps tensors", dumps, None if delegate.dumps is None else str(delegate.dumps)),
        ("SoC in the context", soc.name, context.soc if context else None),
        ("arch in the context", f"v{soc.arch}", f"v{context.arch}" if context else None),
        ("VTCM of the graph", f"{soc.vtcm_mib} MiB", f"{context.vtcm_mib} MiB" if context else None),
        ("optimization level", str(OPTIMIZATION_LEVEL), str(context.optimization_level) if context else None),
        ("QNN build", program.toolchain.qnn, context.build if context else None),
    ]
    for check, asked, got in properties:
        yield program.check(check, asked, got, subgraph=subgraph, reason=delegate.unread)
    if program.toolchain.bridge is not None:
        yield program.check("bridge to QNN", program.toolchain.bridge, program.toolchain.bridge, subgraph=subgraph)


def _elements(program: AuditedProgram) -> Iterator[ProgramCheck]:
    """Yield the checks of the scheme's element types, for all subgraphs together, because some compute only indices."""
    activation, weight = scheme_elements(program.scheme)
    asked = {element for operator in program.lowered.operators if (element := _element(program, operator))}
    delegates = program.facts.delegates
    kernels = {element for delegate in delegates if delegate.context for element in delegate.context.kernel_elements}
    elements = ", ".join(sorted(kernels))
    agrees = (asked or {activation}) <= {element.lstrip("us") for element in kernels}
    reason: str | None = None
    if not kernels:
        unread = (delegate.unread for delegate in delegates if delegate.unread)
        reason = next(unread, "the context binary names no kernel")
    elif not agrees and not asked:
        reason = f"no operator computes in {activation}: the program only moves, compares or counts values ({elements})"
    yield program.check(
        "activation element of the kernels",
        ", ".join(sorted(asked or {activation})),
        None if reason else elements,
        agrees=agrees,
        reason=reason,
    )
    yield program.check("weight element", weight, None, reason=_PACKED)


def _element(program: AuditedProgram, operator: Operator) -> str | None:
    """Return the type in which the NPU computes the operator's value; None if the compiler chooses the type.

    The compiler chooses the type of operators that only move values, and of operators with values of other types.
    """
    element = activation_element(program.scheme, settings_of(program, operator))
    is_compiled = operator.subgraph is not None and not operator.constant and not operator.unused
    is_float = element.startswith("float") and (operator.dtype or "").startswith("float")
    computes = is_compiled and (is_float or operator.quantization is not None) and not moves_data(operator.target)
    return element if computes else None


def _qparams(program: AuditedProgram) -> Iterator[ProgramCheck]:
    """Yield one check per quantized tensor that is logged: the qparams it is read with must equal the compiled ones.

    Several subgraphs can have a tensor of one name. Then one of these tensors must have the qparams.
    """
    compiled = tensors_by_name(program)
    for logged in program.lowered.expected_tensors:
        qparams = logged.quantization
        if qparams is None or len(qparams.scale) != 1:
            continue
        named = compiled.get(logged.identifier, [])
        agreeing = [(subgraph, tensor) for subgraph, tensor in named if _are_equal(qparams, tensor)]
        subgraph, tensor = next(iter([*agreeing, *named]), (None, None))
        yield program.check(
            "grid",
            f"fixed{bits(qparams)} scale {qparams.scale[0]:.6g} zero point {qparams.zero_point[0]}",
            None if tensor is None else _compiled_qparams(tensor),
            subgraph=subgraph,
            subject=logged.identifier,
            agrees=bool(agreeing),
            reason="the debug program's context does not list it",
        )


def _compiled_qparams(tensor: GraphTensor) -> str:
    if tensor.scale is None:
        return tensor.dtype
    return f"{tensor.dtype.lstrip('us')} scale {tensor.scale:.6g} zero point {tensor.zero_point}"


def _are_equal(qparams: Quantization, tensor: GraphTensor) -> bool:
    """Whether the compiled tensor has these qparams. The scales are compared in float32, as QNN stores them."""
    return (
        tensor.scale is not None
        and tensor.dtype.lstrip("us") == f"fixed{bits(qparams)}"
        and tensor.zero_point == qparams.zero_point[0]
        and float(np.float32(qparams.scale[0])) == tensor.scale
    )
