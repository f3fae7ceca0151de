"""The rung `designed`: the model of the device's arithmetic on the host, for every sample.

This is the program that the lowering asks the compiler for. A value that only clamps read is not rounded, because the
compiler merges the clamp into the operator that computes the value (docs/ladder.md), and neither is a value whose
reader the compiler is known to merge. A kernel that is known to write another grid than that on which its value is read
does so here, too. Constants on a grid are already rounded; the device may read them in another way.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.numerics.arithmetic import Arithmetic
from qnnsweep.tasks.records import Design, MergedPair, Operator, Quantization, SharedBias, TensorSpec, WrittenGrid
from qnnsweep.tasks.toolchain.backends.kernel_call import CASTS, KernelCall
from qnnsweep.tasks.toolchain.reference.graph import WITH_WEIGHT, ReferenceGraph, index_of
from qnnsweep.tasks.toolchain.reference.kernels import HostKernels

if TYPE_CHECKING:  # a simulation needs no ExecuTorch
    from qnnsweep.tasks.toolchain.backends.compiler import Compiler

_BIAS = 2  # the position of a bias among the arguments of such a call
_SAME_SCALE = 1e-3


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
    runs = DesignedRuns(graph, operators, input_qparams, design)
    try:
        return [runs(sample) for sample in samples]
    except EvidenceError as refusal:
        return str(refusal)


class DesignedRuns:
    """A program in the device's arithmetic. The arguments are those of `designed_outputs`."""

    def __init__(
        self,
        graph: ReferenceGraph,
        operators: Sequence[Operator],
        input_qparams: Sequence[Quantization | None],
        design: Design,
    ) -> None:
        self._arithmetic = arithmetic_of(graph, operators, input_qparams, design)
        self._kernels = HostKernels(graph.as_read(design), (), halves=self._arithmetic.halves)

    def __call__(self, sample: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the final outputs of a sample. Raises EvidenceError if the host cannot compute them."""
        inputs = [np.asarray(tensor.numpy()) for tensor in sample]
        outputs = self._arithmetic.run(self._kernels, inputs, lambda *_: False)
        if outputs is None:
            raise EvidenceError(next(iter(self._kernels.refusals.values()), "an operator returns no value"))
        return [torch.from_numpy(output) for output in outputs]


def design_of(
    graph: ReferenceGraph,
    operators: Sequence[Operator],
    input_qparams: Sequence[Quantization | None],
    inputs: Sequence[TensorSpec],
    compiler: "Compiler",
    subgraphs: Mapping[int, int | None],
) -> Design:
    """Return what the lowering asks the compiler for beside the grids of the operators and the inputs.

    `subgraphs`: the delegated subgraphs of the operators, None for one on the CPU, as far as this is known.
    """
    calls = operators[: len(graph.calls)]  # the operators after these are outputs that no call reads
    halves = {row.index for row in calls if row.quantization is None and compiler.in_float16(row.overrides)}
    if compiler.in_float16():
        halves |= {-1 - number for number, qparams in enumerate(input_qparams) if qparams is None}
    shared = _shared_biases(graph, operators, input_qparams) if compiler.shares_biases else ()
    return Design(
        halves=tuple(sorted(halves)),
        merged=tuple(_merged(graph, compiler)),
        shared_biases=tuple(shared),
        written=tuple(_written(graph, calls, inputs, subgraphs, compiler)),
        largest_weight=compiler.largest_weight,
    )


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
    return Arithmetic(
        grids=grids,
        written={each.operator: each.quantization for each in design.written},
        halves=frozenset(design.halves),
        merged=frozenset((pair.reader, pair.source) for pair in design.merged),
    )


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


def _written(
    graph: ReferenceGraph,
    operators: Sequence[Operator],
    inputs: Sequence[TensorSpec],
    subgraphs: Mapping[int, int | None],
    compiler: "Compiler",
) -> Iterator[WrittenGrid]:
    """Yield the grids on which the device writes values, where they are not those on which the values are read."""

    def dtype_of(index: int | None) -> str | None:
        return None if index is None else inputs[-1 - index].dtype if index < 0 else graph.calls[index].dtype

    def read_by(index: int) -> int | None:
        arguments = graph.calls[index].arguments
        return index_of(arguments[0]) if arguments else None

    for row, call in zip(operators, graph.calls, strict=True):
        is_on_cpu = subgraphs.get(row.index, 0) is None
        if row.quantization is None or row.shape is None or row.constant or is_on_cpu:
            continue
        first = source = read_by(row.index)
        while first is not None and first >= 0 and graph.calls[first].target in CASTS:
            if {first, row.index} <= subgraphs.keys() and subgraphs[first] != subgraphs[row.index]:
                first = source
                break
            first = read_by(first)
        kernel = KernelCall(
            index=row.index,
            target=call.target,
            arguments=call.arguments,
            shape=row.shape,
            dtype=call.dtype or "",
            qparams=row.quantization,
            overrides=row.overrides,
            source_dtype=dtype_of(source),
            cast_dtype=dtype_of(first),
        )
        if row.index not in graph.clamped_calls and (written := compiler.written_grid(kernel)) is not None:
            yield written


def _shared_biases(
    graph: ReferenceGraph, operators: Sequence[Operator], input_qparams: Sequence[Quantization | None]
) -> Iterator[SharedBias]:
    """Yield the biases that have another scale than the product of the scales of their call's input and weight.

    The quantizer gives a bias that several calls read the scale of the first call.
    """
    read_by = Counter(str(call.arguments[0]) for index, call in enumerate(graph.calls) if graph.dequantizes(index))
    grids = {index: operators[index].quantization for index in range(len(graph.calls))}
    grids |= {-1 - number: qparams for number, qparams in enumerate(input_qparams)}
    for call in graph.calls:
        if call.target not in WITH_WEIGHT or len(call.arguments) <= _BIAS:
            continue
        read, weight, bias = (index_of(argument) for argument in call.arguments[: _BIAS + 1])
        grid = None if read is None else grids[read]
        if grid is None or weight is None or bias is None or len(grid.scale) != 1:
            continue
        of_weight, of_bias = graph.scale_of(weight), graph.scale_of(bias)
        if of_weight is None or of_bias is None or read_by[str(graph.calls[bias].arguments[0])] == 1:
            continue
        own = grid.scale[0] * of_weight
        if own.numel() in (1, of_bias.numel()) and not torch.allclose(own, of_bias, rtol=_SAME_SCALE, atol=0.0):
            yield SharedBias(dequantize=bias, scale=tuple(own.expand_as(of_bias).tolist()))
