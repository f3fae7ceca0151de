"""The constants of a program before they were rounded, and the errors that their rounding causes at operators."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from qnnsweep.tasks.numerics.device_run import DeviceRun
from qnnsweep.tasks.numerics.element_use import Array, Kernels, Value
from qnnsweep.tasks.numerics.metrics import signed_error
from qnnsweep.tasks.records.vocabulary import Cause

OF_CONSTANTS: tuple[Cause, ...] = ("weights", "bias")
"""The causes that arise in the constants of an operator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatConstants:
    """The values of constants that depend on weights, computed from the float weights, by operator index.

    `biases`: those that depend on a bias which does not fit into the 32 bits of its grid.
    """

    weights: Mapping[int, Value] = field(default_factory=dict[int, Value])
    biases: Mapping[int, Value] = field(default_factory=dict[int, Value])

    @property
    def all(self) -> dict[int, Value]:
        return {**self.weights, **self.biases}

    def are_read_by(self, kernels: Kernels, index: int) -> bool:
        """Return whether an operator reads a constant that was rounded."""
        sources = kernels.sources[index]
        return any(source in self.weights or source in self.biases for source in sources) or kernels.reads_halves(index)

    def errors(self, run: DeviceRun, index: int, rounded: Array) -> dict[Cause, Array]:
        """Return the errors that the rounding of constants causes at an operator. `rounded`: its value with them."""
        errors: dict[Cause, Array] = {}
        of_causes: tuple[tuple[Cause, Mapping[int, Value]], ...] = ("weights", self.weights), ("bias", self.biases)
        for cause, floats in of_causes:
            exact = {source: floats[source] for source in floats.keys() & run.kernels.sources[index]}
            halves = cause == "weights" and run.kernels.reads_halves(index)
            if not exact and not halves:
                continue
            value = run.call(index, exact, exact_constants=halves)
            if isinstance(value, np.ndarray):
                errors[cause] = signed_error(rounded, value)
        return errors
