"""The audit, which compares the facts of the finished programs with the request. It has one row per check."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from qnnsweep.conf.schema import SocConfig
from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.records import DebugProgram, LoweredMethod, ProgramCheck, ProgramFacts, Toolchain
from qnnsweep.tasks.records.vocabulary import ProgramName
from qnnsweep.tasks.toolchain.backends.backend import Backend
from qnnsweep.tasks.toolchain.backends.checks import AuditedProgram

_ADDED_DIMENSION = "the compiler added a dimension of 1, because its tensors have at least one; the bytes are the same"


def audit(
    lowered: LoweredMethod, scheme: SchemeConfig, backend: Backend, soc: SocConfig | None, toolchain: Toolchain
) -> tuple[ProgramCheck, ...]:
    """Return every check of a method in the shipping program, then of its debug programs."""
    programs: list[tuple[ProgramName, ProgramFacts, LoweredMethod]] = [("shipping", lowered.facts, lowered)]
    for debug in lowered.debug_programs:
        if debug.facts is not None:
            programs.append(("debug", debug.facts, _part(lowered, debug)))
    checks: list[ProgramCheck] = []
    for name, facts, method in programs:
        program = AuditedProgram(name=name, facts=facts, lowered=method, scheme=scheme, soc=soc, toolchain=toolchain)
        checks += [*_interface(program), *_partitions(program, backend.delegate), *backend.checks(program)]
    return tuple(checks)


def _part(lowered: LoweredMethod, debug: DebugProgram) -> LoweredMethod:
    """Return a method with only those operators and tensors that a debug program logs."""
    if debug.span is None:
        return lowered
    operators = lowered.operators[debug.span.first : debug.span.end]
    return replace(lowered, operators=operators, expected_tensors=lowered.expected_of(debug.span))


def differences(checks: Sequence[ProgramCheck]) -> str | None:
    """Return all checks with the status `differs` in one line; None if there is no such check."""
    return "; ".join(_sentence(check) for check in checks if check.status == "differs") or None


def _sentence(check: ProgramCheck) -> str:
    subgraph = "" if check.subgraph is None else f", subgraph {check.subgraph}"
    subject = "" if check.subject is None else f" of {check.subject}"
    return f"{check.program} program{subgraph}: {check.check}{subject}: asked {check.asked}, got {check.got}"


def _interface(program: AuditedProgram) -> Iterator[ProgramCheck]:
    """Yield the checks of the inputs and outputs. They must be dense in memory, with the last axis innermost."""
    exported, facts = program.lowered.exported, program.facts
    for role, specs, tensors in (("input", exported.inputs, facts.inputs), ("output", exported.outputs, facts.outputs)):
        yield program.check(f"number of {role}s", str(len(specs)), str(len(tensors)))
        for spec, tensor in zip(specs, tensors, strict=False):
            asked = _form(spec.dtype, spec.shape, range(len(spec.shape)))
            got = _form(tensor.dtype, tensor.shape, tensor.dim_order)
            # The compiler gives a tensor without dimensions a dimension of 1. The bytes of the tensor are the same.
            has_added_dimension = (spec.dtype, spec.shape, tensor.shape) == (tensor.dtype, (), (1,))
            check = program.check(role, asked, got, subject=spec.name, agrees=asked == got or has_added_dimension)
            yield replace(check, reason=_ADDED_DIMENSION) if has_added_dimension else check


def _form(dtype: str, shape: Sequence[int], dim_order: Sequence[int]) -> str:
    return f"{dtype}{list(shape)} in axis order {list(dim_order)}"


def _partitions(program: AuditedProgram, expected_delegate: str | None) -> Iterator[ProgramCheck]:
    delegates = program.facts.delegates
    yield program.check("delegated subgraphs", str(program.lowered.delegated_subgraphs), str(len(delegates)))
    for subgraph, delegate in enumerate(delegates):
        yield program.check("backend", expected_delegate or "none", delegate.backend, subgraph=subgraph)
        yield program.check("calls", "1", str(delegate.calls), subgraph=subgraph)
