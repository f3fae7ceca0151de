"""The run of the reference graph halfway between the float model and the device, with gradients."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tasks.numerics.element_use import Array
from tasks.toolchain.reference.graph import ReferenceGraph


class HalfwayRun:
    """The reference graph on one sample, with half of every error added where it arises.

    `errors`: by operator index, the error of the operator's value, of its shape. A constant's value in the graph
    already contains its error, the rounding of weights. The model's inputs have the indices -1, -2 and so on.

    Raises NoKernel if an operator that the final outputs depend on cannot be computed on the host.
    """

    def __init__(self, graph: ReferenceGraph, inputs: Sequence[Array], errors: Mapping[int, Array]) -> None:
        constants = {*graph.constant_calls}
        self._points: dict[int, torch.Tensor] = {}
        values: dict[int, Any] = {}
        with torch.enable_grad():
            tensors = [
                self._moved(-1 - position, torch.from_numpy(np.array(array)), errors, 0.5)
                for position, array in enumerate(inputs)
            ]
            for index in range(len(graph.calls)):
                value = graph.call(index, values, tensors)
                share = -0.5 if index in constants else 0.5
                values[index] = self._moved(index, value, errors, share) if isinstance(value, torch.Tensor) else value
            self._outputs = [output for output in graph.answer(values, tensors) if isinstance(output, torch.Tensor)]

    def gradients(self, output: int, direction: Array) -> dict[int, Array]:
        """Return, by the index of an error, d(<direction, output>) / d(value). An error without effect is left out.

        `direction`: of the shape of the final output with the number `output`.
        """
        value = self._outputs[output]
        if not value.requires_grad:
            return {}
        indices = list(self._points)
        slopes = torch.autograd.grad(
            value,
            [self._points[index] for index in indices],
            torch.from_numpy(direction).to(value.dtype),
            retain_graph=True,
            allow_unused=True,
        )
        return {index: slope.numpy() for index, slope in zip(indices, slopes, strict=True) if slope is not None}

    def _moved(self, index: int, value: torch.Tensor, errors: Mapping[int, Array], share: float) -> torch.Tensor:
        if index not in errors or not value.is_floating_point():
            return value
        moved = value + torch.from_numpy(np.asarray(share * errors[index])).to(value.dtype)
        self._points[index] = moved if moved.requires_grad else moved.requires_grad_()
        return moved
