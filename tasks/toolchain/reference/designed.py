"""The rung `designed`: the edge graph on the host, with every value rounded to the grid that the lowering recorded.

This is the program that the lowering asks the compiler for. A value that only clamps read is not rounded, because the
compiler merges the clamp into the operator that computes the value (docs/ladder.md). Constants are already rounded.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.numerics.dequantize import broadcastable
from qnnsweep.tasks.records import Operator, Quantization
from qnnsweep.tasks.toolchain.reference.graph import NoKernel, ReferenceGraph, Value, is_float


def designed_outputs(
    graph: ReferenceGraph,
    operators: Sequence[Operator],
    input_qparams: Sequence[Quantization | None],
    samples: Sequence[tuple[torch.Tensor, ...]],
) -> list[list[Value]] | str:
    """Return the final outputs of every sample. `operators`: one per call of `graph`, with the grid of its value.

    If the host cannot compute an operator from rounded values, or if a grid does not fit its tensor, return the reason.
    """
    try:
        with torch.no_grad():
            return list(_answers(graph, _grids(graph, operators), input_qparams, samples))
    except (NoKernel, EvidenceError) as refusal:
        return str(refusal)


def _grids(graph: ReferenceGraph, operators: Sequence[Operator]) -> dict[int, Quantization]:
    """Map the calls whose values are rounded to the grids to which they are rounded."""
    unrounded = graph.clamped_calls.union(graph.constant_calls)
    calls = operators[: len(graph.calls)]  # the operators after these are outputs that no call reads
    return {
        operator.index: operator.quantization
        for operator in calls
        if operator.quantization is not None and operator.index not in unrounded
    }


def rounded(values: torch.Tensor, qparams: Quantization) -> torch.Tensor:
    """Return the values as `qnnsweep.tasks.numerics.dequantize.fake_quantize` rounds them, in the dtype of `values`.

    The result is equal bit by bit, in a third of the time. `torch.fake_quantize_per_tensor_affine` would multiply by
    the inverse of the scale in float32, and round some values near the middle of two steps to the other side.
    """
    arrays = broadcastable(qparams, tuple(values.shape))
    scale: Any
    zero_point: Any
    # torch is faster with numbers than with tensors of one element.
    scale, zero_point = (array.item() if array.ndim == 0 else torch.from_numpy(array) for array in arrays)
    steps = values.double().div(scale).round_()
    return steps.clamp_(qparams.quant_min - zero_point, qparams.quant_max - zero_point).mul_(scale).to(values.dtype)


def _answers(
    graph: ReferenceGraph,
    grids: Mapping[int, Quantization],
    input_qparams: Sequence[Quantization | None],
    samples: Sequence[tuple[torch.Tensor, ...]],
) -> Iterator[list[Value]]:
    """Yield the final outputs of each sample."""

    def change(index: int, value: Value) -> Value:
        return rounded(value, grids[index]) if index in grids and is_float(value) else value

    constants: dict[int, Value] = {}
    for index in graph.constant_calls:
        constants[index] = graph.call(index, constants, ())
    for sample in samples:
        pairs = zip(sample, input_qparams, strict=True)
        inputs = [value if qparams is None else rounded(value, qparams) for value, qparams in pairs]
        yield graph.walk(inputs, constants, change)
