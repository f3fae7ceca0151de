"""The rung `designed`: the model of the device's arithmetic on the host, for every sample.

This is the program that the lowering asks the compiler for. A value that only clamps read is not rounded, because the
compiler merges the clamp into the operator that computes the value (docs/ladder.md), and neither is a value whose
reader the compiler is known to merge. Constants on a grid are already rounded.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.numerics.arithmetic import Arithmetic
from qnnsweep.tasks.records import Design, MergedPair, Operator, Quantization
from qnnsweep.tasks.toolchain.reference.graph import ReferenceGraph
from qnnsweep.tasks.toolchain.reference.kernels import HostKernels

if TYPE_CHECKING:  # a simulation needs no ExecuTorch
    from qnnsweep.tasks.toolchain.backends.compiler import Compiler


def designed_outputs(
    graph: ReferenceGraph,
    operators: Sequence[Operator],
    input_qparams: Sequence[Quantization | None],
    design: Design,
    samples: Sequence[tuple[torch.Tensor, ...]],
) -> list[list[torch.Tensor]] | str:
    """Return the final outputs of every sample. `operators`: one per call of `graph`, with the grid of its value.

    If the host cannot compute an operator from rounded values, or if a grid does not fit its tensor, return the reason.
    """
    arithmetic = arithmetic_of(graph, operators, input_qparams, design)
    kernels = HostKernels(graph, (), halves=arithmetic.halves)
    try:
        return list(_answers(arithmetic, kernels, samples))
    except EvidenceError as refusal:
        return str(refusal)


def design_of(
    graph: ReferenceGraph,
    operators: Sequence[Operator],
    input_qparams: Sequence[Quantization | None],
    compiler: "Compiler",
) -> Design:
    """Return what the lowering asks the compiler for beside the grids of the operators and the inputs."""
    calls = operators[: len(graph.calls)]  # the operators after these are outputs that no call reads
    halves = {row.index for row in calls if row.quantization is None and compiler.in_float16(row.overrides)}
    if compiler.in_float16():
        halves |= {-1 - number for number, qparams in enumerate(input_qparams) if qparams is None}
    return Design(halves=tuple(sorted(halves)), merged=tuple(_merged(graph, compiler)))


def arithmetic_of(
    graph: ReferenceGraph, operators: Sequence[Operator], input_qparams: Sequence[Quantization | None], design: Design
) -> Arithmetic:
    """Return the arithmetic of a design."""
    grids = {-1 - number: qparams for number, qparams in enumerate(input_qparams) if qparams is not None}
    unrounded = graph.clamped_calls.union(graph.constant_calls)
    grids |= {
        operator.index: operator.quantization
        for operator in operators[: len(graph.calls)]
        if operator.quantization is not None and operator.index not in unrounded
    }
    merged = frozenset((pair.reader, pair.source) for pair in design.merged)
    return Arithmetic(grids=grids, halves=frozenset(design.halves), merged=merged)


def _merged(graph: ReferenceGraph, compiler: "Compiler") -> Iterator[MergedPair]:
    """Yield the readers that the compiler merges, each with its source, which nothing else reads."""
    readers: dict[int, list[int]] = {}
    for index, sources in enumerate(graph.sources):
        for source in sources:
            readers.setdefault(source, []).append(index)
    for source, read_by in readers.items():
        if len(read_by) == 1 and source not in graph.output_calls:
            (reader,) = read_by
            call = graph.calls[source]
            if compiler.merges(call.target, call.arguments, graph.calls[reader].target):
                yield MergedPair(reader=reader, source=source)


def _answers(
    arithmetic: Arithmetic, kernels: HostKernels, samples: Sequence[tuple[torch.Tensor, ...]]
) -> Iterator[list[torch.Tensor]]:
    """Yield the final outputs of each sample."""
    for sample in samples:
        outputs = arithmetic.run(kernels, [np.asarray(tensor.numpy()) for tensor in sample], lambda *_: False)
        if outputs is None:
            raise EvidenceError(next(iter(kernels.refusals.values())))
        yield [torch.from_numpy(output) for output in outputs]
