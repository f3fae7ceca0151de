"""What the search for a repair must know about each operator, over all captured samples.

The methods of a model with states are calibrated together, and pass states to each other. A value that each of them
computes has one grid, and a change of the scheme is one of all methods.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from qnnsweep.tasks.records import (
    BiasUse,
    Comparison,
    InputUse,
    LoweredMethod,
    LoweredProgram,
    Operator,
    OperatorComparison,
    Quantization,
    TensorSpec,
)
from qnnsweep.tasks.records.methods import in_method, named_operator
from qnnsweep.tasks.repair.schemes import Selector

_FAR = 0.01  # of the width of a grid: sigmoid's grid ends 0.4 % below 1
_CLAMPS = ("aten.clamp", "aten.hardtanh", "aten.relu")
_TYPES = frozenset(
    ("add", "clamp", "div", "exp", "mean", "mul", "pow", "rsqrt", "sigmoid", "sqrt", "sub", "sum", "tanh")
)
"""The types that have one name in the edge graph and in the graph that the quantizer annotates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorFacts:
    """An operator of the edge graph, or an input of the model, and how it uses its grid.

    Numbers are None if no sample was compared.
    """

    operator: Operator
    selector: Selector | None
    """Selects the input, or the node of the exported program from which the operator descends; None without a node."""
    readers: tuple[int, ...]
    """The indices of the operators that read the value. They are empty for a final output."""
    least: float | None
    """The least value on the device or in the edge graph, which clips nothing."""
    largest: float | None
    clipped_elements: int
    codes_used: tuple[int, int] | None
    """The smallest and the largest number of quantized values that a sample uses."""
    reads_constant: bool
    """Whether the operator reads a value and a constant that has no grid of weights, such as an addend."""
    before_softmax: bool
    """Whether a softmax discards elements of the value."""
    before_clamp: bool
    """Whether only a clamp reads the value."""
    merged_with: tuple[int, ...]
    """The indices of the clamp behind the operator or, for a clamp, of the operator before it. The compiler merges the
    two, so that the values between them are not rounded. It cannot merge them if they have different bits."""
    weights: int
    """The number of elements of the constants that the operator reads."""
    weight_shape: tuple[int, ...]
    """The shape of the largest constant that the operator reads. Empty if it reads none."""
    bias_use: BiasUse | None
    """None if the operator has no bias, or if its floats are not known."""

    @property
    def is_too_wide(self) -> bool:
        """Whether values are clipped or, far enough beyond the ends to matter, would be if no earlier value were."""
        if self.clipped_elements or self.ends is None or self.least is None or self.largest is None:
            return self.clipped_elements > 0
        most = _FAR * (self.ends[1] - self.ends[0])
        return self.least < self.ends[0] - most or self.largest > self.ends[1] + most

    @property
    def elements(self) -> int:
        return math.prod(self.operator.shape or (0,))

    @property
    def steps(self) -> int | None:
        """The number of steps of the value's grid; None for a value without a grid."""
        qparams = self.operator.quantization
        return None if qparams is None else qparams.quant_max - qparams.quant_min

    @property
    def ends(self) -> tuple[float, float] | None:
        """The ends of the value's grid; None for a value without a grid or with one grid per channel."""
        return None if (qparams := self.operator.quantization) is None else qparams.ends


def operator_facts(comparison: Comparison, lowered: LoweredProgram) -> dict[str, OperatorFacts]:
    """Return the facts about every operator that computes something, and about every input.

    The facts are by the names in the program, and inputs have negative indices.
    """
    driven, found = lowered.model.driven, dict[str, OperatorFacts]()
    is_shared = _shared(lowered.methods) if driven is not None else lambda _: len(lowered.methods) == 1
    first = inputs = 0
    for method in lowered.methods:
        name = method.exported.name
        states = {link.input for link in driven.plan.links if link.to_method == name} if driven is not None else set()
        of_method = _method_facts(comparison, method, first, inputs, states)
        first, inputs = first + len(method.operators), inputs + len(method.exported.inputs)
        found |= {
            name: facts
            if facts.selector is None or is_shared(facts.selector)
            else replace(facts, selector=facts.selector._replace(method=method.exported.method))
            for name, facts in of_method.items()
        }
    return found if driven is None else dict(_joined(found, lowered.methods))


def _shared(methods: Sequence[LoweredMethod]) -> Callable[[Selector], bool]:
    """Return whether a selector selects the same in every method: the same input, or operators of the same module."""
    computed = [defaultdict[str, list[tuple[str, str]]](list) for _ in methods]
    for by_node, method in zip(computed, methods, strict=True):
        for operator in method.operators:
            if operator.source_nodes and not operator.constant:
                by_node[operator.source_nodes[-1]].append((operator.target, operator.module_path))
    inputs = [{spec.name for spec in method.exported.inputs} for method in methods]

    def is_shared(selector: Selector) -> bool:
        if selector.kind == "input":
            return all(selector.name in names for names in inputs)
        first, *others = (by_node[selector.name] for by_node in computed)
        return all(other == first for other in others)

    return is_shared


def _joined(
    found: Mapping[str, OperatorFacts], methods: Sequence[LoweredMethod]
) -> Iterator[tuple[str, OperatorFacts]]:
    """Yield the facts about the operators of all methods. Those that are shared have the uses of all methods."""
    names = [method.exported.method for method in methods]
    for name, facts in found.items():
        local = name.removeprefix(f"{facts.operator.method}/")
        same = [found.get(in_method(local, method)) for method in names]
        if facts.selector is None or facts.selector.method is not None or len(same) == 1 or None in same:
            yield name, facts
            continue
        uses = [other for other in same if other is not None]
        codes = [use.codes_used for use in uses if use.codes_used is not None]
        yield (
            name,
            replace(
                facts,
                least=min((use.least for use in uses if use.least is not None), default=None),
                largest=max((use.largest for use in uses if use.largest is not None), default=None),
                clipped_elements=sum(use.clipped_elements for use in uses),
                codes_used=(min(low for low, _ in codes), max(high for _, high in codes)) if codes else None,
                before_softmax=any(use.before_softmax for use in uses),
                bias_use=facts.bias_use or next((use.bias_use for use in uses if use.bias_use is not None), None),
            ),
        )


def _method_facts(
    comparison: Comparison, lowered: LoweredMethod, first: int, inputs: int, states: Collection[int]
) -> dict[str, OperatorFacts]:
    """Return the facts about a method. `first`, `inputs`: the numbers of operators and inputs of those before it.

    `states`: the positions of the inputs that are states, which no override can change.
    """
    method = lowered.exported.method
    operators = [named_operator(operator, method, first) for operator in lowered.operators]
    rows: dict[int, list[OperatorComparison]] = defaultdict(list)
    for row in comparison.operators:
        rows[row.operator.index].append(row)
    readers: dict[int, list[int]] = defaultdict(list)
    for operator in operators:
        for source in operator.sources:
            readers[source].append(operator.index)
    by_index = {operator.index: operator for operator in operators}
    bias_uses = {use.operator_index: use for use in comparison.bias_uses}
    types: dict[str, set[str]] = defaultdict(set)
    for operator in operators:
        if operator.source_nodes and not operator.constant and not operator.unused:
            types[operator.source_nodes[-1]] |= {_type(operator)} & _TYPES
    uses = {use.input: use for use in comparison.input_uses}
    given: dict[str, OperatorFacts] = {}
    for number, (spec, qparams) in enumerate(zip(lowered.exported.inputs, lowered.input_qparams, strict=True)):
        name = in_method(spec.name, method)
        facts = _input_facts(-1 - inputs - number, spec, qparams, uses.get(name))
        operator = replace(facts.operator, method=method, name=name)
        given[name] = replace(facts, operator=operator, selector=None if number in states else facts.selector)
    return given | {
        operator.name: _facts(
            operator,
            rows[operator.index],
            [by_index[index] for index in readers[operator.index]],
            by_index,
            bias_uses.get(operator.index),
            [index for index in operator.sources if len(readers[index]) == 1 and not by_index[index].constant],
            _selector(operator, lowered.operators[operator.index - first].name, types),
        )
        for operator in operators
        if not operator.constant and not operator.unused
    }


def _type(operator: Operator) -> str:
    return operator.target.removeprefix("aten.").partition(".")[0]


def _selector(operator: Operator, name: str, types: Mapping[str, Collection[str]]) -> Selector | None:
    """Return what selects an operator in its method.

    `name`: of the operator in its method. `types`: per node, the types of `_TYPES` that its operators have.
    """
    node = operator.source_nodes[-1] if operator.source_nodes else name
    if node == name:  # a pass of the edge graph inserted it
        return None
    is_one_of_several = _type(operator) in _TYPES and len(types[node]) > 1
    return Selector(node, operator=_type(operator) if is_one_of_several else None)


def _input_facts(index: int, spec: TensorSpec, qparams: Quantization | None, use: InputUse | None) -> OperatorFacts:
    """Return the facts about an input of the model: it is like an operator without sources, outside every delegate."""
    operator = Operator(
        index=index,
        name=spec.name,
        target="input",
        debug_handle=None,
        output_index=0,
        source_nodes=(),
        module_path="",
        stack_trace="",
        shape=spec.shape,
        dtype=spec.dtype,
        quantization=qparams,
        axis_order=None,
        subgraph=None,
        constant=False,
        unused=False,
    )
    return OperatorFacts(
        operator=operator,
        selector=Selector(spec.name, "input"),
        readers=(),
        least=None if use is None else use.least,
        largest=None if use is None else use.largest,
        clipped_elements=0 if use is None else use.clipped_elements,
        codes_used=None,
        reads_constant=False,
        before_softmax=False,
        before_clamp=False,
        merged_with=(),
        weights=0,
        weight_shape=(),
        bias_use=None,
    )


def _facts(
    operator: Operator,
    rows: Sequence[OperatorComparison],
    readers: Sequence[Operator],
    by_index: dict[int, Operator],
    bias_use: BiasUse | None,
    only_read_here: Sequence[int],
    selector: Selector | None,
) -> OperatorFacts:
    parts = [row.parts for row in rows]
    least = [part.least_value for part in parts if part.least_value is not None]
    largest = [part.largest_value for part in parts if part.largest_value is not None]
    codes = [part.codes_used for part in parts if part.codes_used is not None]
    masking = {name for row in rows for name in row.masked_by}
    sources = [by_index[index] for index in operator.sources]
    # An output of an operator with several outputs, such as a batch norm, is an operator of its own.
    computing = sources[0].sources if operator.target == "getitem" and sources else operator.sources
    constants = [by_index[index].shape or () for index in computing if by_index[index].constant]
    # The dequantized weights and biases of a layer have operators of their own; an addend is a constant of the graph.
    reads_constant = (
        operator.target.startswith(("aten.add", "aten.mul", "aten.sub", "aten.div"))
        and len([source for source in sources if not source.constant]) < 2
    )
    before_clamp = bool(readers) and all(reader.target.startswith(_CLAMPS) for reader in readers)
    before = only_read_here if operator.target.startswith(_CLAMPS) else ()
    return OperatorFacts(
        operator=operator,
        selector=selector,
        readers=tuple(reader.index for reader in readers),
        least=min(least, default=None),
        largest=max(largest, default=None),
        clipped_elements=sum(part.clipped_elements or 0 for part in parts),
        codes_used=(min(codes), max(codes)) if codes else None,
        reads_constant=reads_constant,
        before_softmax=any("softmax" in name for name in masking) or any("softmax" in r.target for r in readers),
        before_clamp=before_clamp,
        merged_with=tuple(reader.index for reader in readers) if before_clamp else tuple(before),
        weights=sum(map(math.prod, filter(None, constants))),
        weight_shape=max(constants, key=math.prod, default=()),
        bias_use=bias_use,
    )
