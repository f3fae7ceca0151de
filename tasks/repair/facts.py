"""What the search for a repair must know about each operator, over all captured samples.

The methods of a model with states are calibrated together, and pass states to each other. A value that each of them
computes has one grid, and a change of the scheme is one of all methods.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
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
    WrittenGrid,
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
    called: str = ""
    """The target of the call that computes the value. It returns a tuple if the operator takes the value out of one."""
    written: WrittenGrid | None = None
    """The grid on which the device writes the value; None if it is the grid on which the value is read."""
    twins: tuple[str, ...] = ()
    """The operators that the selector selects in all methods, with this one; empty for a selector of one method."""

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

    The facts are by the names in the program, and inputs have negative indices. With states, a selector that selects
    the same in every method is one of all methods. All others are of their method, if the program has several.
    """
    driven, by_method = lowered.model.driven, list[dict[str, OperatorFacts]]()
    states: set[str] = set()
    if driven is not None:
        by_name = {method.exported.name: method.exported for method in lowered.methods}
        states = {by_name[link.to_method].inputs[link.input].name for link in driven.plan.links}
    first = inputs = 0
    for method in lowered.methods:
        by_method.append(_method_facts(comparison, method, first, inputs, states))
        first, inputs = first + len(method.operators), inputs + len(method.exported.inputs)
    if len(by_method) == 1:
        return by_method[0]
    shared = _shared(by_method) if driven is not None else {}
    return {
        name: shared[name] if name in shared else _of_its_method(facts)
        for of_method in by_method
        for name, facts in of_method.items()
    }


def _of_its_method(facts: OperatorFacts) -> OperatorFacts:
    """Return the facts with a selector that selects in this method alone."""
    selector = facts.selector and facts.selector._replace(method=facts.operator.method)
    return replace(facts, selector=selector)


def _shared(by_method: Sequence[Mapping[str, OperatorFacts]]) -> dict[str, OperatorFacts]:
    """Return the facts about the inputs and the operators that every method has, each with its uses in all methods.

    They are those whose selector selects, in every method, the same input, or operators that the same line of the same
    module calls in the same order.
    """
    shared: dict[str, OperatorFacts] = {}
    selected = [defaultdict[Selector, list[OperatorFacts]](list) for _ in by_method]
    for by_selector, of_method in zip(selected, by_method, strict=True):
        for facts in of_method.values():
            if facts.selector is not None:
                by_selector[facts.selector].append(facts)
    for selector, operators in selected[0].items():
        others = [by_selector[selector] for by_selector in selected[1:]]
        if any(list(map(_origin, other)) != list(map(_origin, operators)) for other in others):
            continue
        for twins in zip(operators, *others, strict=True):
            shared |= {facts.operator.name: _joined(facts, twins) for facts in twins}
    return shared


def _origin(facts: OperatorFacts) -> tuple[str, str, str]:
    return facts.operator.target, facts.operator.module_path, facts.operator.stack_trace


def _joined(facts: OperatorFacts, twins: Sequence[OperatorFacts]) -> OperatorFacts:
    """Return the facts about an operator with the uses of its value in all methods."""
    codes = [twin.codes_used for twin in twins if twin.codes_used is not None]
    return replace(
        facts,
        twins=tuple(twin.operator.name for twin in twins),
        least=min((twin.least for twin in twins if twin.least is not None), default=None),
        largest=max((twin.largest for twin in twins if twin.largest is not None), default=None),
        clipped_elements=sum(twin.clipped_elements for twin in twins),
        codes_used=(min(low for low, _ in codes), max(high for _, high in codes)) if codes else None,
        before_softmax=any(twin.before_softmax for twin in twins),
        bias_use=facts.bias_use or next((twin.bias_use for twin in twins if twin.bias_use is not None), None),
    )


def _method_facts(
    comparison: Comparison, lowered: LoweredMethod, first: int, inputs: int, states: Collection[str]
) -> dict[str, OperatorFacts]:
    """Return the facts about a method. `first`, `inputs`: the numbers of operators and inputs of those before it.

    `states`: the names of the inputs that are states of any method, which no override can change.
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
    written = {each.operator: each for each in lowered.design.written}
    given: dict[str, OperatorFacts] = {}
    for number, (spec, qparams) in enumerate(zip(lowered.exported.inputs, lowered.input_qparams, strict=True)):
        name = in_method(spec.name, method)
        facts = _input_facts(-1 - inputs - number, spec, qparams, uses.get(name))
        operator = replace(facts.operator, method=method, name=name)
        given[name] = replace(facts, operator=operator, selector=None if spec.name in states else facts.selector)
    return given | {
        operator.name: _facts(
            operator,
            rows[operator.index],
            [by_index[index] for index in readers[operator.index]],
            by_index,
            bias_uses.get(operator.index),
            [index for index in operator.sources if len(readers[index]) == 1 and not by_index[index].constant],
            _selector(operator, lowered.operators[operator.index - first].name, types),
            written.get(operator.index - first),
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
    written: WrittenGrid | None,
) -> OperatorFacts:
    parts = [row.parts for row in rows]
    least = [part.least_value for part in parts if part.least_value is not None]
    largest = [part.largest_value for part in parts if part.largest_value is not None]
    codes = [part.codes_used for part in parts if part.codes_used is not None]
    masking = {name for row in rows for name in row.masked_by}
    sources = [by_index[index] for index in operator.sources]
    # An output of an operator with several outputs, such as a batch norm, is an operator of its own.
    computing = sources[0] if operator.target == "getitem" and sources else operator
    constants = [by_index[index].shape or () for index in computing.sources if by_index[index].constant]
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
        called=computing.target,
        written=written,
    )
