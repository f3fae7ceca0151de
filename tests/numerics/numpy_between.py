"""A run of a NumPy program between the float model's and the device's, without any code for budgets.

Implements `qnnsweep.tasks.numerics.element_use.Sensitivity`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qnnsweep.tasks.numerics.element_use import Array, Value

if TYPE_CHECKING:
    from tests.numerics.numpy_program import Program


@dataclass(frozen=True)
class RunBetween:
    """The values of a run with a fraction of every error added. `inputs`: the index of an input's error by operator."""

    program: Program
    values: Mapping[int, Value]
    inputs: Mapping[int, int]
    errors: set[int]

    def gradients(self, output: int, direction: Array) -> dict[int, Array]:
        """Return, by the index of an error, d(<direction, output>) / d(value). An error without effect is left out."""
        # By operator, the derivative of every output that has one.
        slopes: dict[int, dict[int, Array]] = defaultdict(dict)

        def add(index: int, position: int, slope: Array) -> None:
            before = slopes[index].get(position)
            slopes[index][position] = slope if before is None else before + slope

        add(self.program.output_ops[output], 0, direction)
        for index in reversed(range(len(self.program.ops))):
            op, value = self.program.ops[index], self.values[index]
            if index not in slopes:
                continue
            if op.getitem_index is not None:
                add(op.reads[0], op.getitem_index, slopes[index][0])
            elif op.pullback is not None:
                weights = [slopes[index].get(position) for position in range(len(value) if type(value) is tuple else 1)]
                for source, slope in self.program.slopes(index, self.values, weights).items():
                    add(source, 0, slope)
        by_error = {index: outputs[0] for index, outputs in slopes.items() if 0 in outputs}
        by_error |= {error: by_error[index] for index, error in self.inputs.items() if index in by_error}
        return {index: slope for index, slope in by_error.items() if index in self.errors}
