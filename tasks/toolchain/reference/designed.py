"""The rung `designed`: the model of the device's arithmetic on the host, for every sample.

This is the program that the lowering asks the compiler for. A value that only clamps read is not rounded, because the
compiler merges the clamp into the operator that computes the value (docs/ladder.md), and neither is a value whose
reader the compiler is known to merge. Constants on a grid are already rounded.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.numerics.arithmetic import Arithmetic
from qnnsweep.tasks.records import Operator, Quantization
from qnnsweep.tasks.toolchain.backends.compiler import Compiler
from qnnsweep.tasks.toolchain.reference.graph import ReferenceGraph
from qnnsweep.tasks.toolchain.reference.kernels import HostKernels


def designed_outputs(
    graph: ReferenceGraph,
    operators: Sequence[Operator],
    input_qparams: Sequence[Quantization | None],
    compiler: Compiler,
    samples: Sequence[tuple[torch.Tensor, ...]],
) -> list[list[torch.Tensor]] | str:
    """Return the final outputs of every sample. `operators`: one per call of `graph`, with the grid of its value.

    If the host cannot compute an operator from rounded values, or if a grid does not fit its tensor, return the reason.
    """
    arithmetic = designed_arithmetic(graph, operators, input_qparams, compiler)
    kernels = HostKernels(graph, (), halves=arithmetic.halves)
    try:
        return list(_answers(arithmetic, kernels, samples))
    except EvidenceError as refusal:
        return str(refusal)


def designed_arithmetic(
    graph: ReferenceGraph,
    operators: Sequence[Operator],
    input_qparams: Sequence[Quantization | None],
    compiler: Compiler,
) -> Arithmetic:
    """Return the arithmetic that the lowering asks the compiler for."""
    calls = operators[: len(graph.calls)]  # the operators after these are outputs that no call reads
    grids = {-1 - number: qparams for number, qparams in enumerate(input_qparams) if qparams is not None}
    halves = frozenset(
        operator.index
        for operator in calls
        if operator.quantization is None and compiler.in_float16(operator.overrides)
    )
    if compiler.in_float16():
        halves |= {-1 - number for number, qparams in enumerate(input_qparams) if qparams is None}
    unrounded = graph.clamped_calls.union(graph.constant_calls)
    grids |= {
        operator.index: operator.quantization
        for operator in calls
        if operator.quantization is not None and operator.index not in unrounded
    }
    return Arithmetic(grids=grids, halves=halves, merged=frozenset(_merged(graph, compiler)))


def _merged(graph: ReferenceGraph, compiler: Compiler) -> Iterator[tuple[int, int]]:
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
                yield reader, source


def _answers(
    arithmetic: Arithmetic, kernels: HostKernels, samples: Sequence[tuple[torch.Tensor, ...]]
) -> Iterator[list[torch.Tensor]]:
    """Yield the final outputs of each sample."""
    for sample in samples:
        outputs = arithmetic.run(kernels, [np.asarray(tensor.numpy()) for tensor in sample], lambda *_: False)
        if outputs is None:
            raise EvidenceError(next(iter(kernels.refusals.values())))
        yield [torch.from_numpy(output) for output in outputs]
