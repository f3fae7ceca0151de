"""The checks of overridden operators: whether the debug program's tensors have what the overrides ask for."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from qnnsweep.conf.overrides import merged
from qnnsweep.conf.schemes import OverridePrecision, SchemeOverride
from qnnsweep.tasks.records import GraphTensor, Operator, ProgramCheck, Quantization
from qnnsweep.tasks.toolchain.backends.checks import AuditedProgram
from qnnsweep.tasks.toolchain.backends.qnn.elements import activation_element

Tensors = Mapping[str, Sequence[tuple[int, GraphTensor]]]
_UNLISTED = "the debug program's context does not list it"
_NO_GRID = "the edge graph has no single grid for it"
_ROUNDED = 0.51
"""The largest distance of a compiled range from the requested one, in steps: the zero point is a whole number."""


def override_checks(program: AuditedProgram) -> Iterator[ProgramCheck]:
    """Yield the checks of overridden inputs and operators of the debug program, except constants, which are folded."""
    compiled = tensors_by_name(program)
    identifiers = {
        (handle, logged.output_index): logged.identifier
        for logged in program.lowered.expected_tensors
        for handle in logged.debug_handles
    }
    yield from _inputs(program)
    for operator in program.lowered.operators:
        if not operator.overrides or operator.constant or operator.unused or operator.debug_handle is None:
            continue
        override = settings_of(program, operator)
        if override.precision is OverridePrecision.cpu:
            yield _on_cpu(program, operator, compiled)
        elif operator.quantization is not None or override.precision is OverridePrecision.float16:
            identifier = identifiers.get((operator.debug_handle, operator.output_index), operator.name)
            yield from _result(program, operator, override, compiled.get(identifier, ()))


def _inputs(program: AuditedProgram) -> Iterator[ProgramCheck]:
    """Yield a check of the range of every overridden input, as the edge graph has it: its grid is audited anyway."""
    exported = program.lowered.exported
    for spec, qparams in zip(exported.inputs, program.lowered.input_qparams, strict=True):
        for override in program.scheme.overrides:
            is_selected = override.input is not None and fnmatchcase(spec.name, override.input)
            if override.range is not None and is_selected and fnmatchcase(exported.name, override.method or "*"):
                limits, step = (None, 0.0) if qparams is None else (qparams.ends, qparams.scale[0])
                yield _range_check(program, override.range, limits, step, subject=spec.name, reason=_NO_GRID)


def tensors_by_name(program: AuditedProgram) -> Tensors:
    """Return the tensors of all subgraphs by name, with the subgraph. Several subgraphs can have one name."""
    compiled: dict[str, list[tuple[int, GraphTensor]]] = defaultdict(list)
    for subgraph, delegate in enumerate(program.facts.delegates):
        for tensor in delegate.context.tensors if delegate.context else ():
            compiled[tensor.name].append((subgraph, tensor))
    return compiled


def settings_of(program: AuditedProgram, operator: Operator) -> SchemeOverride:
    """Return the settings of all overrides that select the operator."""
    return merged(program.scheme.overrides, operator.overrides, f"the operator {operator.name}")


def bits(qparams: Quantization) -> int:
    """Return the bit width of QNN's type for the quantized integers. torch may use a wider dtype: int32 for 16 bits."""
    return next(width for width in (8, 16, 32, 64) if qparams.quant_max - qparams.quant_min < 2**width)


def _on_cpu(program: AuditedProgram, operator: Operator, compiled: Tensors) -> ProgramCheck:
    delegated = [subgraph for subgraph, _ in compiled.get(f"{operator.name}@{operator.output_index}", ())]
    got = f"subgraph {delegated[0]}" if delegated else "CPU"
    return program.check("override: place", "CPU", got, subject=operator.name)


def _result(
    program: AuditedProgram, operator: Operator, override: SchemeOverride, tensors: Sequence[tuple[int, GraphTensor]]
) -> Iterator[ProgramCheck]:
    """Yield the checks of an operator's result in the delegate that computes it."""
    subgraph, tensor = next(iter(tensors), (None, None))
    asked = activation_element(program.scheme, override)
    got = None if tensor is None else tensor.dtype.lstrip("us")
    where = {"subgraph": subgraph, "subject": operator.name, "reason": _UNLISTED}
    # A logged float is 32 bits wide. The names of the kernels show whether they compute with 16 bits.
    agrees = got in ("float16", "float32") if asked == "float16" else None
    yield program.check("override: element", asked, got, agrees=agrees, **where)
    limits = None if tensor is None else _range(tensor)
    step = 0.0 if tensor is None else tensor.scale or 0.0
    if override.range is not None:
        yield _range_check(program, override.range, limits, step, **where)
    if override.symmetric:
        agrees = limits is not None and abs(limits[0] + limits[1]) <= 2 * step
        yield program.check(
            "override: range", "symmetric", None if limits is None else _text(limits), agrees=agrees, **where
        )


def _range_check(
    program: AuditedProgram, asked: Sequence[float], limits: tuple[float, float] | None, step: float, **where: Any
) -> ProgramCheck:
    agrees = limits is not None and all(
        abs(limit - wanted) <= _ROUNDED * step for limit, wanted in zip(limits, asked, strict=True)
    )
    return program.check(
        "override: range", _text(asked), None if limits is None else _text(limits), agrees=agrees, **where
    )


def _text(limits: Sequence[float]) -> str:
    return f"{limits[0]:.6g} to {limits[1]:.6g}"


def _range(tensor: GraphTensor) -> tuple[float, float] | None:
    """Return the smallest and the largest value that the tensor can have; None for a tensor without a grid."""
    if tensor.scale is None or tensor.zero_point is None:
        return None
    count = 2 ** int(tensor.dtype.lstrip("usfixed"))
    least = -count // 2 if tensor.dtype.startswith("s") else 0
    return (least - tensor.zero_point) * tensor.scale, (least + count - 1 - tensor.zero_point) * tensor.scale
