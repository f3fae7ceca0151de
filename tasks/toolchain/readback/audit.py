"""The audit: the facts of the finished programs compared with the request, one row per check."""

from collections.abc import Iterator, Sequence

from conf.schema import SchemeConfig, SocConfig
from tasks.records import LoweredProgram, ProgramCheck, ProgramFacts, Toolchain
from tasks.records.vocabulary import ProgramName
from tasks.toolchain.backends.backend import Backend
from tasks.toolchain.backends.checks import program_check


def audit(
    lowered: LoweredProgram, scheme: SchemeConfig, backend: Backend, soc: SocConfig | None, toolchain: Toolchain
) -> tuple[ProgramCheck, ...]:
    """Return every check of the shipping program, then of the debug program."""
    programs: list[tuple[ProgramName, ProgramFacts | None]] = [
        ("shipping", lowered.facts), ("debug", lowered.debug_facts),
    ]  # fmt: skip
    return tuple(
        check
        for program, facts in programs
        if facts is not None
        for checks in (
            _interface(program, facts, lowered),
            _partitions(program, facts, lowered, backend.delegate),
            backend.checks(program, facts, lowered, scheme, soc, toolchain),
        )
        for check in checks
    )


def differences(checks: Sequence[ProgramCheck]) -> str | None:
    """Return everything that differs, in one line; None if nothing does."""
    return "; ".join(_sentence(check) for check in checks if check.status == "differs") or None


def _sentence(check: ProgramCheck) -> str:
    subgraph = "" if check.subgraph is None else f", subgraph {check.subgraph}"
    subject = "" if check.subject is None else f" of {check.subject}"
    return f"{check.program} program{subgraph}: {check.check}{subject}: asked {check.asked}, got {check.got}"


def _interface(program: ProgramName, facts: ProgramFacts, lowered: LoweredProgram) -> Iterator[ProgramCheck]:
    """Yield the checks of the inputs and outputs: dense tensors, the last axis innermost in memory."""
    exported = lowered.quantized.exported
    for role, specs, tensors in (("input", exported.inputs, facts.inputs), ("output", exported.outputs, facts.outputs)):
        yield program_check(program, f"number of {role}s", str(len(specs)), str(len(tensors)))
        for spec, tensor in zip(specs, tensors, strict=False):
            asked = _form(spec.dtype, spec.shape, range(len(spec.shape)))
            got = _form(tensor.dtype, tensor.shape, tensor.dim_order)
            yield program_check(program, role, asked, got, subject=spec.name)


def _form(dtype: str, shape: Sequence[int], dim_order: Sequence[int]) -> str:
    return f"{dtype}{list(shape)} in axis order {list(dim_order)}"


def _partitions(
    program: ProgramName, facts: ProgramFacts, lowered: LoweredProgram, expected_delegate: str | None
) -> Iterator[ProgramCheck]:
    count = len(facts.delegates)
    yield program_check(program, "delegated subgraphs", str(lowered.delegated_subgraphs), str(count))
    for subgraph, delegate in enumerate(facts.delegates):
        yield program_check(program, "backend", expected_delegate or "none", delegate.backend, subgraph=subgraph)
        yield program_check(program, "calls", "1", str(delegate.calls), subgraph=subgraph)
