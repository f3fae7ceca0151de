"""The two programs of a reproducer: the program that shows the error, and the passing twin; and changes to try."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qnnsweep.tasks.numerics.dequantize import quantize
from qnnsweep.tasks.records import Quantization
from qnnsweep.tasks.repro.case import Case
from qnnsweep.tasks.repro.program import SmallProgram, small_program

Array = NDArray[Any]

CLAMPS = ("aten.hardtanh.default", "aten.clamp.default", "aten.relu.default")
_LARGE_BIAS = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A small program, the SoC that it is compiled for, and the right value of its first output."""

    description: str
    program: SmallProgram
    soc: str
    floats: bool
    """Whether the HTP computes in 16-bit floats."""
    expected: Array
    """Quantized values if the output has a grid."""
    qparams: Quantization | None
    used: Array | None


def variant_of(case: Case, program: SmallProgram, soc: str, *, floats: bool) -> Variant:
    """Return the program that should show the error."""
    return Variant(
        description="",
        program=program,
        soc=soc,
        floats=floats,
        expected=np.asarray(case.expected.elements),
        qparams=case.measured.qparams,
        used=case.used,
    )


def twins(case: Case, base: Variant, socs: Mapping[str, int]) -> Iterator[Variant]:
    """Yield changed programs that may be right, the nearest change first. `socs`: the architectures of the SoCs."""
    yield from _without_clamp(case, base)
    yield from _smaller_bias(case, base)
    yield from _other_socs(base, socs)
    yield from _in_floats(case, base)


def _without_clamp(case: Case, base: Variant) -> Iterator[Variant]:
    """Yield the program without a clamp: behind the operator, or if the operator is a clamp, without the operator."""
    index, members = base.program.outputs[0], set(base.program.members)
    clamps = {member for member in members - {index} if case.graph.calls[member].target in CLAMPS}
    readers = {clamp for clamp in clamps if index in case.graph.sources[clamp]}
    if readers:
        program = small_program(case, members - readers, [index])
        yield replace(base, description="no clamp behind the operator", program=program)
    sources = [source for source in case.graph.sources[index] if source in members]
    if case.graph.calls[index].target in CLAMPS and len(sources) == 1 and not base.floats:
        (source,) = sources
        qparams, result = case.operators[source].quantization, case.result(members - {index}, source)
        if qparams is not None and result is not None:
            yield replace(
                base,
                description=f"{case.operators[source].name} without the clamp behind it",
                program=small_program(case, members - {index}, [source]),
                expected=quantize(result, qparams, smallest_type=True),
                qparams=qparams,
                used=None,
            )


def _smaller_bias(case: Case, base: Variant) -> Iterator[Variant]:
    """Yield the program whose 32-bit biases have at most half of the largest magnitude."""
    index, members = base.program.outputs[0], base.program.members
    large = {
        name: tensor.long().clamp(-_LARGE_BIAS, _LARGE_BIAS).to(tensor.dtype)
        for name, tensor in case.graph.constants.items()
        if str(tensor.dtype) == "torch.int32" and tensor.numel() and int(tensor.long().abs().max()) > _LARGE_BIAS
    }
    program = small_program(case, members, base.program.outputs, constants=large) if large else base.program
    changed = [
        (before, program.constants[name])
        for name, before in base.program.constants.items()
        if not np.array_equal(before, program.constants[name])
    ]
    result = case.result(members, index, large) if changed else None
    if result is None or base.qparams is None:
        return
    channels = ", ".join(str(at) for before, after in changed for at in np.flatnonzero(before != after)[:8])
    codes = ", ".join(str(before.reshape(-1)[at]) for before, after in changed for at in _differing(before, after)[:8])
    yield replace(
        base,
        description=f"the 32-bit bias of channel {channels} is limited to ±2³⁰ (it is {codes})",
        program=program,
        expected=quantize(result, base.qparams, smallest_type=True),
    )


def _differing(before: Array, after: Array) -> NDArray[np.intp]:
    return np.flatnonzero(before != after)


def _other_socs(base: Variant, socs: Mapping[str, int]) -> Iterator[Variant]:
    """Yield the program for one SoC of every other architecture, the nearest architecture first."""
    if base.soc not in socs:
        return
    arch = socs[base.soc]
    archs = {arch}
    for soc in sorted(socs, key=lambda name: (abs(socs[name] - arch), not name.startswith("SM"), name)):
        if socs[soc] not in archs:
            archs.add(socs[soc])
            yield replace(base, description=f"compiled for {soc} (v{socs[soc]})", soc=soc)


def _in_floats(case: Case, base: Variant) -> Iterator[Variant]:
    if base.floats or base.qparams is None:
        return
    index, members = base.program.outputs[0], base.program.members
    result = case.result(members, index)
    if result is not None:
        yield replace(
            base,
            description="16-bit floats instead of quantized values",
            program=small_program(case, members, base.program.outputs, floats=True),
            floats=True,
            expected=quantize(result, base.qparams, smallest_type=True),
        )
