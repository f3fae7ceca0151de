"""The runs of the reference graph between those of the float model and of the device, with derivatives."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from qnnsweep.tasks.errors import raise_shortage
from qnnsweep.tasks.numerics.element_use import Array, NoDerivative
from qnnsweep.tasks.toolchain.reference.graph import NoKernel, ReferenceGraph, is_float


class RunBetween:
    """The reference graph on one sample, with a fraction of every error added where it arises.

    `constants`: the values of the calls that depend only on constants, computed from the float weights.
    `errors`: by operator index, the error of the operator's value, of its shape. The model's inputs have the indices
    -1, -2 and so on. `fraction`: 0 for the float model's run, 1 for the device's.

    Raises NoDerivative if the graph itself rounds activations.
    """

    def __init__(
        self,
        graph: ReferenceGraph,
        inputs: Sequence[Array],
        constants: Mapping[int, Any],
        errors: Mapping[int, Array],
        fraction: float,
    ) -> None:
        self._graph, self._constants = graph, constants
        self._inputs = [torch.from_numpy(np.array(array)) for array in inputs]
        self._parts = {index: torch.from_numpy(np.asarray(fraction * error)) for index, error in errors.items()}
        self._points: dict[int, torch.Tensor] = {}
        rounding = next((call.target for index, call in enumerate(graph.calls) if self._rounds(index)), None)
        if rounding is not None:
            raise NoDerivative(f"the edge graph rounds activations itself ({rounding})")

    @cached_property
    def _outputs(self) -> list[torch.Tensor]:
        try:
            with torch.enable_grad():
                return self._run(self._point)
        except NoKernel as refusal:
            raise NoDerivative(str(refusal)) from refusal

    def gradients(self, output: int, direction: Array) -> dict[int, Array]:
        """Return, by the index of an error, d(<direction, output>) / d(value). An error without effect is left out.

        `direction`: of the shape of the final output with the number `output`. Raises NoDerivative if an operator has
        no derivative, or cannot be computed on the host.
        """
        value = self._outputs[output]
        if not value.requires_grad:
            return {}
        indices = list(self._points)
        try:
            slopes = torch.autograd.grad(
                value,
                [self._points[index] for index in indices],
                torch.from_numpy(direction).to(value.dtype),
                retain_graph=True,
                allow_unused=True,
            )
        except RuntimeError as error:
            raise_shortage(error)
            raise NoDerivative(f"an operator has no derivative: {error}") from error
        return {index: slope.numpy() for index, slope in zip(indices, slopes, strict=True) if slope is not None}

    def _run(self, moved: Callable[[int, torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        """Return the final outputs of a run in which `moved` replaces every floating-point value."""

        def change(index: int, value: Any) -> Any:
            return moved(index, value) if is_float(value) else value

        inputs = [change(-1 - number, value) for number, value in enumerate(self._inputs)]
        outputs = self._graph.walk(inputs, self._constants, change)
        return [output for output in outputs if isinstance(output, torch.Tensor)]

    def _rounds(self, index: int) -> bool:
        """Return whether a call rounds a value that depends on the model's inputs."""
        return index not in self._constants and ".quantize_per_" in self._graph.calls[index].target

    def _point(self, index: int, value: torch.Tensor) -> torch.Tensor:
        if index not in self._parts:
            return value
        point = value + self._parts[index].to(value.dtype)
        self._points[index] = point if point.requires_grad else point.requires_grad_()
        return point
