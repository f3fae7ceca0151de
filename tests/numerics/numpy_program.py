"""Programs of operators in NumPy.

`Program` implements `qnnsweep.tasks.numerics.element_use.Kernels` without any code for masks, verdicts or budgets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from qnnsweep.tasks.numerics.element_use import Array, NoDerivative, Value, Weights

from tests.numerics.numpy_between import RunBetween  # isort: skip

Pullback = Callable[..., list[Array | None]]
"""Maps the weights of the outputs (None: unused) and the inputs to the derivative of the weighted sum per input."""
Selection = Callable[[Array, Array], Array]
"""Returns the elements that indices, the second argument, select from the value that an operator reads."""


@dataclass(frozen=True, kw_only=True)
class Op:
    """An operator. Without a `pullback` it has no derivative, as with integers.

    `selection`: for an operator whose value, or whose second output, is indices into the value that it reads.
    `on_exact_inputs`: for an operator that reads an input of the model, what it computes before the input is rounded.
    """

    reads: tuple[int, ...]
    forward: Callable[..., Value]
    pullback: Pullback | None = None
    moves: bool = False
    linear: bool = False
    clamps: bool = False
    getitem_index: int | None = None
    constant: bool = False
    selection: Selection | None = None
    unsupported: str | None = None
    on_exact_inputs: Callable[..., Value] | None = None


@dataclass
class Program:
    """The operators in their order, and the indices of those whose values are the final outputs."""

    ops: list[Op] = field(default_factory=list)
    output_ops: list[int] = field(default_factory=list)
    results: Sequence[int] = ()

    def __post_init__(self) -> None:
        self.refusals: dict[int, str] = {}

    def add(self, op: Op) -> int:
        self.ops.append(op)
        return len(self.ops) - 1

    @property
    def sources(self) -> Sequence[Sequence[int]]:
        return [tuple(dict.fromkeys(op.reads)) for op in self.ops]

    @property
    def outputs(self) -> frozenset[int]:
        return frozenset(self.output_ops)

    @property
    def constants(self) -> frozenset[int]:
        return frozenset(index for index, op in enumerate(self.ops) if op.constant)

    @property
    def clamped(self) -> frozenset[int]:
        read = {source for op in self.ops for source in op.reads}
        return frozenset(read.difference(self.output_ops, *(op.reads for op in self.ops if not op.clamps)))

    @property
    def data_movement_ops(self) -> frozenset[int]:
        return frozenset(index for index, op in enumerate(self.ops) if op.moves)

    @property
    def linear(self) -> frozenset[int]:
        return frozenset(index for index, op in enumerate(self.ops) if op.linear)

    @property
    def getitem_index(self) -> Mapping[int, int]:
        return {index: op.getitem_index for index, op in enumerate(self.ops) if op.getitem_index is not None}

    @property
    def halves(self) -> frozenset[int]:
        return frozenset()

    @property
    def quantizing(self) -> Mapping[int, int]:
        return {}

    @property
    def misread_biases(self) -> frozenset[int]:
        return frozenset()

    def reads_halves(self, _: int) -> bool:
        return False

    def exact_constants(self) -> dict[int, Value]:
        return {}

    @property
    def entries(self) -> list[int]:
        """The operators whose values are the model's inputs."""
        return [index for index, op in enumerate(self.ops) if not op.reads and not op.constant]

    def call(
        self,
        index: int,
        values: Mapping[int, Value],
        inputs: Sequence[Array] | None = None,
        *,
        exact_constants: bool = False,
    ) -> Value | None:
        del exact_constants  # no program has constants in float16
        if inputs is not None and index in self.entries:
            return inputs[self.entries.index(index)]
        op = self.ops[index]
        if op.unsupported is not None:
            self.refusals[index] = op.unsupported
            return None
        values = {**self._constants(op.reads, values), **values}
        missing = [source for source in op.reads if source not in values]
        if missing:
            self.refusals[index] = f"reads operator {missing[0]}, which has no value"
            return None
        value = op.forward(*(values[source] for source in op.reads))
        return value if isinstance(value, tuple) else np.asarray(value)

    def call_on_exact_inputs(self, index: int, values: Mapping[int, Value]) -> Value | None:
        forward = self.ops[index].on_exact_inputs
        return None if forward is None else forward(*(values[source] for source in self.ops[index].reads))

    def _constants(self, indices: Sequence[int], values: Mapping[int, Value]) -> dict[int, Value]:
        """Return the values of constants that `values` does not have."""
        constants = [index for index in indices if self.ops[index].constant and index not in values]
        return {index: value for index in constants if (value := self.call(index, values)) is not None}

    def gradient(self, index: int, source: int, values: Mapping[int, Value], weights: Weights) -> Array | None:
        value = self.call(index, values)
        if self.ops[index].pullback is None or value is None:
            return None
        slopes = self.slopes(index, values, weights(value if isinstance(value, tuple) else (value,)))
        return np.abs(slopes[source]) if source in slopes else None

    def slopes(self, index: int, values: Mapping[int, Value], weights: Sequence[Array | None]) -> dict[int, Array]:
        """Return, by source, the signed derivative of the weighted outputs of an operator that has a `pullback`."""
        op, total = self.ops[index], dict[int, Array]()
        assert op.pullback is not None
        values = {**self._constants(op.reads, values), **values}
        slopes = op.pullback(weights, *(values[read] for read in op.reads))
        for read, slope in zip(op.reads, slopes, strict=True):
            if slope is not None:
                total[read] = total[read] + slope if read in total else slope
        return total

    def picked(self, index: int, indices: Array, values: Mapping[int, Value]) -> Array | None:
        op = self.ops[index]
        if op.getitem_index == 1:
            op = self.ops[op.reads[0]]
        if op.selection is None or not isinstance(value := values.get(op.reads[0]), np.ndarray):
            return None
        try:
            return op.selection(value, indices)
        except IndexError:
            return None

    def changed_constants(self, errors: Mapping[int, Array]) -> dict[int, Value]:
        changed: dict[int, Value] = {}
        for index in sorted(self.constants):
            value = self.call(index, changed)
            if index in errors and isinstance(value, np.ndarray):
                changed[index] = value - errors[index]
            elif any(source in changed for source in self.ops[index].reads) and value is not None:
                changed[index] = value
        return changed

    def between(
        self, inputs: Sequence[Array], constants: Mapping[int, Value], errors: Mapping[int, Array], fraction: float
    ) -> RunBetween:
        """Run the program with a fraction of every error added. The n-th input is the value of the n-th `entry`."""
        entries = self.entries
        values: dict[int, Value] = dict(constants)
        for index in range(len(self.ops)):
            if index in constants:
                continue
            value = self.call(index, values)
            if index in entries:
                position = entries.index(index)
                value = inputs[position] + fraction * errors.get(-1 - position, np.float32(0))
            if value is None:
                raise NoDerivative(self.refusals[index])
            if index in errors and isinstance(value, np.ndarray):
                value = value + fraction * errors[index]
            values[index] = value
        return RunBetween(self, values, {entry: -1 - position for position, entry in enumerate(entries)}, {*errors})

    def answer(self, values: Mapping[int, Value], _: Sequence[Array] | None = None) -> list[Array]:
        return [np.asarray(values[index]) for index in self.output_ops]

    def fits(self) -> bool:
        """Return whether the shapes and types of the operators fit together, as in every exported program."""
        try:
            self.run()
        except (ValueError, IndexError, TypeError):
            return False
        return True

    def run(self) -> dict[int, Value]:
        """Return the value of every operator in the program's own run."""
        values: dict[int, Value] = {}
        for index in range(len(self.ops)):
            value = self.call(index, values)
            if value is not None:
                values[index] = value
        return values
