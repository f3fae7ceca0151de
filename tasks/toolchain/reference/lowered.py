"""The rung `lowered`: the edge graph on the host, with float weights, and with nothing rounded.

What its outputs have against those of eager PyTorch is the error of the graph: no quantization has made it. The float
weights are those that pt2e stored.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from qnnsweep.tasks.numerics.float_weights import dequantizes_constant, float_weight
from qnnsweep.tasks.records import Operator
from qnnsweep.tasks.toolchain.reference.graph import NoKernel, ReferenceGraph, Value

_ROUNDS = ("quantized_decomposed.quantize_", "quantized_decomposed.dequantize_")
_NAMED = 3
_ITSELF = "this scheme rounds nothing before the device, so the rung is the rung edge"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoweredRung:
    """The final outputs of the rung for every sample.

    `outputs`: None if the host cannot compute them. `note`: why there are none. `values`: computes the values of the
    calls for the first sample, if the host can.
    """

    outputs: list[list[Value]] | None
    note: str | None
    values: Callable[[], Mapping[int, Value]] | None = None


def lowered_rung(
    graph: ReferenceGraph,
    operators: Sequence[Operator],
    floats: Mapping[str, torch.Tensor] | None,
    samples: Sequence[tuple[torch.Tensor, ...]],
) -> LoweredRung | None:
    """Return the rung; None if the scheme rounds nothing, so that the rung is the edge graph itself.

    `operators`: one per call of `graph`. `floats`: the float weights by the names of their observers; None for a float
    scheme.
    """
    plain = _without_rounding(graph)
    if floats is None and plain.calls == graph.calls:
        return None
    try:
        with torch.no_grad():
            constants, unknown = _constants(graph, operators, floats or {})
            if unknown:
                return LoweredRung(outputs=None, note=_unknown(unknown))
            answers = [plain.walk(sample, constants) for sample in samples]
    except NoKernel as refusal:
        return LoweredRung(outputs=None, note=str(refusal))
    return LoweredRung(outputs=answers, note=None, values=partial(plain.tensors, samples[0], constants))


def note_of(rung: LoweredRung | None) -> str | None:
    return _ITSELF if rung is None else rung.note


def _unknown(operators: Sequence[str]) -> str:
    more = " and more" if len(operators) > _NAMED else ""
    return f"the float weights of {len(operators)} operators are not known: {', '.join(operators[:_NAMED])}{more}"


def _constants(
    graph: ReferenceGraph, operators: Sequence[Operator], floats: Mapping[str, torch.Tensor]
) -> tuple[dict[int, Value], list[str]]:
    """Return the values of the constant calls, from the float weights, and the operators whose float is not known.

    The value is None if only other constant calls read it.
    """
    arrays = {name: tensor.float().numpy() for name, tensor in floats.items()}
    constants: dict[int, Value] = {}
    unknown: list[str] = []
    for index in graph.constant_calls:
        value, operator = graph.call(index, constants, ()), operators[index]
        if dequantizes_constant(operator) and isinstance(value, torch.Tensor):
            original = float_weight(operator, value.float().numpy(), arrays)
            if original is None:
                unknown.append(operator.name)
            else:
                value = torch.from_numpy(original).to(value.dtype)
        constants[index] = value
        for source in graph.last_reads.get(index, ()):
            constants[source] = None
    return constants, unknown


def _without_rounding(graph: ReferenceGraph) -> ReferenceGraph:
    """Return the graph in which every call that rounds an activation returns its input."""
    constant = frozenset(graph.constant_calls)
    calls = [
        replace(call, target="aten.alias.default", arguments=call.arguments[:1], keywords={}, dtype=None)
        if call.target.startswith(_ROUNDS) and index not in constant
        else call
        for index, call in enumerate(graph.calls)
    ]
    return ReferenceGraph(calls, graph.outputs, graph.constants)
