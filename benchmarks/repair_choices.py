"""The noise of many choices of the bits of a program's weights. Runs in a worker.

ExecuTorch's quantizer makes one program per number of bits, which all of these weights have. The grids of the values do
not depend on the weights, so a choice is the graph of the first program in which the constants of each layer, with the
calls that dequantize them, are those of one of the programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch.utils._pytree import tree_map

from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.records import LoweredMethod, Operator
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.deterministic import make_deterministic
from qnnsweep.tasks.toolchain.edge import output_noise
from qnnsweep.tasks.toolchain.reference.designed import DesignedRuns
from qnnsweep.tasks.toolchain.reference.graph import Call, ReferenceGraph
from qnnsweep.tasks.toolchain.trial import designed_methods


def noise_of_choices(
    method: LoweredMethod,
    schemes: Sequence[SchemeConfig],
    kind: str,
    layers: Sequence[str],
    choices: Sequence[Sequence[int]],
    count: int,
    store: Store,
) -> list[list[float]]:
    """Return the noise of the worst final output of each of the first `count` samples, at `designed`, per choice.

    `schemes`: one per number of bits. `layers`: the names of the operators that read the weights. A choice has the
    position of the scheme of each of them.
    """
    make_deterministic()
    programs = [method_of for scheme in schemes for method_of in designed_methods([method], None, scheme, kind, store)]
    first, samples = programs[0], programs[0].samples[:count]
    for other in programs:
        assert other.input_grids == first.input_grids
        assert other.design == first.design
        assert list(map(_facts, other.operators)) == list(map(_facts, first.operators))
    indices = {operator.name: operator.index for operator in first.operators}
    of_layer = [list(_dequantized(first.reference, indices[name])) for name in layers]
    noise: list[list[float]] = []
    for choice in choices:
        calls, constants = [*first.reference.calls], dict(first.reference.constants)
        for number in set(choice):
            graph = programs[number].reference
            constants |= {_name(number, name): tensor for name, tensor in graph.constants.items()}
            for indices_of_layer, chosen in zip(of_layer, choice, strict=True):
                for index in indices_of_layer if chosen == number else ():
                    calls[index] = _renamed(graph.calls[index], number)
        mixed = ReferenceGraph(calls, first.reference.outputs, constants)
        runs = DesignedRuns(mixed, first.operators, first.input_grids, first.design)
        noise.append([output_noise(runs(sample), first.eager, each) for each, sample in enumerate(samples)])
    return noise


def _facts(operator: Operator) -> tuple[object, ...]:
    """Return the facts of an operator that must not depend on the bits of the weights."""
    return operator.name, operator.target, operator.sources, None if operator.constant else operator.quantization


def _dequantized(graph: ReferenceGraph, index: int) -> Iterator[int]:
    """Yield the calls that compute an operator's weight and bias from constants."""
    for source in graph.sources[index]:
        if source in graph.constant_calls:
            yield source
            yield from _dequantized(graph, source)


def _renamed(call: Call, number: int) -> Call:
    """Return a call that reads the constants of a program. `number`: of the program."""

    def renamed(argument: Any) -> Any:
        return {"constant": _name(number, argument["constant"])} if isinstance(argument, dict) else argument

    arguments, keywords = (
        tree_map(renamed, encoded, is_leaf=lambda node: isinstance(node, dict) and "constant" in node)
        for encoded in (call.arguments, dict(call.keywords))
    )
    return replace(call, arguments=arguments, keywords=keywords)


def _name(number: int, constant: str) -> str:
    return f"{constant} of program {number}"
