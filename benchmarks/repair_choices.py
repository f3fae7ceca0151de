"""The noise of many choices of the bits of a program's weights. Runs in a worker.

ExecuTorch's quantizer makes one program per number of bits, which all of these weights have. The grids of the values do
not depend on the weights, so a choice is the graph of the first program in which the constants of each layer, with the
calls that dequantize them, are those of one of the programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.records import Design, LoweredMethod, Operator, Quantization
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.deterministic import make_deterministic
from qnnsweep.tasks.toolchain.edge import edge_program, output_noise
from qnnsweep.tasks.toolchain.quantize import input_names, quantized_programs
from qnnsweep.tasks.toolchain.reference.designed import DesignedRuns, design_of
from qnnsweep.tasks.toolchain.reference.graph import Call, ReferenceGraph, graph_of
from qnnsweep.tasks.toolchain.reference.operators import input_qparams, operator_table
from qnnsweep.tasks.toolchain.tensors import read_samples, read_tensors


@dataclass(frozen=True, kw_only=True, slots=True)
class _Program:
    graph: ReferenceGraph
    operators: Sequence[Operator]
    qparams: Sequence[Quantization | None]
    design: Design


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
    exported = method.exported
    samples = read_samples(store, exported.evaluation, input_names(exported), count)
    eager = read_tensors(store, exported.outputs_eager)
    programs = [_program(method, scheme, kind, store) for scheme in schemes]
    first = programs[0]
    for other in programs:
        assert other.qparams == first.qparams
        assert other.design == first.design
        assert list(map(_facts, other.operators)) == list(map(_facts, first.operators))
    indices = {operator.name: operator.index for operator in first.operators}
    of_layer = [list(_dequantized(first.graph, indices[name])) for name in layers]
    noise: list[list[float]] = []
    for choice in choices:
        calls, constants = [*first.graph.calls], dict(first.graph.constants)
        for number in set(choice):
            graph = programs[number].graph
            constants |= {_name(number, name): tensor for name, tensor in graph.constants.items()}
            for indices_of_layer, chosen in zip(of_layer, choice, strict=True):
                for index in indices_of_layer if chosen == number else ():
                    calls[index] = _renamed(graph.calls[index], number)
        mixed = ReferenceGraph(calls, first.graph.outputs, constants)
        runs = DesignedRuns(mixed, first.operators, first.qparams, first.design)
        noise.append([output_noise(runs(sample), eager, each) for each, sample in enumerate(samples)])
    return noise


def _program(method: LoweredMethod, scheme: SchemeConfig, kind: str, store: Store) -> _Program:
    compiler = backend_of(kind).compiler(scheme, None)
    (program,) = quantized_programs([method.exported], scheme, kind, None, store)
    exported = edge_program(compiler, program, method.exported.name).exported_program(method.exported.name)
    operators, qparams, graph = (
        operator_table(exported, compiler),
        input_qparams(exported, compiler),
        graph_of(exported),
    )
    design = design_of(graph, operators, qparams, compiler)
    return _Program(graph=graph, operators=operators, qparams=qparams, design=design)


def _facts(operator: Operator) -> tuple[object, ...]:
    """Return what may not depend on the bits of a weight."""
    return operator.name, operator.target, operator.sources, None if operator.constant else operator.quantization


def _dequantized(graph: ReferenceGraph, index: int) -> Iterator[int]:
    """Yield the calls that an operator's constants, the weight and the bias, come from."""
    for source in graph.sources[index]:
        if source in graph.constant_calls:
            yield source
            yield from _dequantized(graph, source)


def _renamed(call: Call, number: int) -> Call:
    """Return a call that reads the constants of a program. `number`: of the program."""

    def renamed(encoded: Any) -> Any:
        if isinstance(encoded, list | tuple):
            return [renamed(element) for element in encoded]
        if isinstance(encoded, dict) and "constant" in encoded:
            return {"constant": _name(number, encoded["constant"])}
        return encoded

    keywords = {key: renamed(value) for key, value in call.keywords.items()}
    return replace(call, arguments=tuple(map(renamed, call.arguments)), keywords=keywords)


def _name(number: int, constant: str) -> str:
    return f"{constant} of program {number}"
