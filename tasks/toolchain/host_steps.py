"""The steps of a model with states on the host, one after the other, by the loop of the device.

A step reads the states that the steps before it have written. Its other inputs are those of eager PyTorch's own run, so
that the same steps are computed whatever the states are: a wrong token does not change what follows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from qnnsweep.tasks.records import ExportedMethod, PlannedStep, StepPlan
from qnnsweep.tasks.records.stages import by_place
from qnnsweep.tasks.toolchain import runner


@dataclass(frozen=True, kw_only=True, slots=True)
class HostMethod:
    """A method that the host can compute."""

    exported: ExportedMethod
    samples: Sequence[tuple[torch.Tensor, ...]]
    """The inputs of its steps in eager PyTorch's own run: of all, or of the first ones."""
    run: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
    """Returns the outputs of a step."""


def outputs_of_steps(
    methods: Sequence[HostMethod], plan: StepPlan
) -> Iterator[tuple[str, int, Sequence[torch.Tensor]]]:
    """Yield the method, the number of the sample and the outputs of every step of the sequences with these samples."""
    by_name = {method.exported.name: method for method in methods}
    samples: dict[tuple[int, int], int] = {}
    for method in methods:
        samples |= by_place((method.exported.positions or ())[: len(method.samples)])

    def read_input(name: str, index: int, key: str | None) -> Any:
        method = by_name[name]
        if key is not None:
            return method.samples[int(key)][index].numpy().copy()
        spec = method.exported.inputs[index]
        return np.zeros(spec.shape, spec.dtype)

    def call(_: tuple[int, int], step: PlannedStep, inputs: runner.Arrays) -> runner.Arrays:
        outputs = by_name[step.method].run([torch.from_numpy(np.asarray(array, order="C")) for array in inputs])
        return [output.numpy() for output in outputs]

    with_inputs = _with_eager_inputs(plan, samples)
    for (sequence, position), _, outputs, _ in runner.steps_of(with_inputs, read_input, call):
        step = with_inputs.sequences[sequence][position]
        yield step.method, samples[sequence, position], [torch.from_numpy(output) for output in outputs]


def _with_eager_inputs(plan: StepPlan, samples: Mapping[tuple[int, int], int]) -> StepPlan:
    """Return the plan of the sequences with these samples. All inputs but the states are those of eager PyTorch.

    The value of such an input is the number of the step's sample.
    """
    states = {(link.to_method, link.input) for link in plan.links}

    def with_inputs(place: tuple[int, int], step: PlannedStep) -> PlannedStep:
        inputs = [
            None if key is None and (step.method, index) in states else str(samples[place])
            for index, key in enumerate(step.inputs)
        ]
        return replace(step, inputs=tuple(inputs))

    sequences = [
        tuple(with_inputs((sequence, number), step) for number, step in enumerate(steps))
        for sequence, steps in enumerate(plan.sequences)
        if (sequence, 0) in samples
    ]
    return StepPlan(links=plan.links, tokens=(), sequences=tuple(sequences))
