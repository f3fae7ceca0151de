"""The noise of the samples of changed programs at the rung `designed`. Runs in a worker.

The steps of a model with states run one after the other, by the loop of the device: a step reads the states that the
steps before it have written in the device's arithmetic. It reads eager PyTorch's tokens, so that the same steps are
compared with and without a change.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import ExportedMethod, PlannedStep, Quantization, StateLink, StepPlan
from qnnsweep.tasks.toolchain import runner
from qnnsweep.tasks.toolchain.edge import output_noise
from qnnsweep.tasks.toolchain.reference.designed import DesignedRuns


@dataclass(frozen=True, kw_only=True, slots=True)
class DesignedMethod:
    """A method of a changed program, and its samples."""

    exported: ExportedMethod
    runs: DesignedRuns
    samples: Sequence[tuple[torch.Tensor, ...]]
    """The inputs of the samples in eager PyTorch's own run: of the first ones, among which samples may be chosen."""
    eager: Mapping[str, torch.Tensor]
    input_grids: Sequence[Quantization | None]
    output_grids: Sequence[Quantization | None]


def noise_of_samples(methods: Sequence[DesignedMethod]) -> Iterator[float]:
    """Yield the noise of every sample, method by method. Raises EvidenceError if the host cannot compute one."""
    for method in methods:
        for number, sample in enumerate(method.samples):
            yield output_noise(method.runs(sample), method.eager, number)


def noise_of_steps(
    methods: Sequence[DesignedMethod], plan: StepPlan, equal_grids: Collection[StateLink]
) -> Iterator[float]:
    """Yield the noise of every step, method by method. `equal_grids`: states that must be read as they are written.

    Raises EvidenceError if the host cannot compute a step, or if such a state is read on another grid.
    """
    by_name = {method.exported.name: method for method in methods}
    for link in equal_grids:
        written, read = by_name[link.method].output_grids[link.output], by_name[link.to_method].input_grids[link.input]
        if grid_of(written) != grid_of(read):
            state = by_name[link.to_method].exported.inputs[link.input].name
            raise EvidenceError(f"the state {state} would be written on one grid and read on another")
    samples = {
        (place.sequence, place.step): number
        for method in methods
        for number, place in enumerate((method.exported.positions or ())[: len(method.samples)])
    }
    noise: dict[tuple[str, int], float] = {}

    def read_input(name: str, index: int, key: str | None) -> Any:
        method = by_name[name]
        if key is not None:
            return method.samples[int(key)][index].numpy().copy()
        spec = method.exported.inputs[index]
        return np.zeros(spec.shape, spec.dtype)

    def call(place: tuple[int, int], step: PlannedStep, inputs: Sequence[Any]) -> list[Any]:
        method, number = by_name[step.method], samples[place]
        outputs = method.runs([torch.from_numpy(np.asarray(array, order="C")) for array in inputs])
        noise[step.method, number] = output_noise(outputs, method.eager, number)
        return [output.numpy() for output in outputs]

    for _ in runner.steps_of(_with_eager_inputs(plan, samples), read_input, call):
        pass
    yield from (noise[name, number] for name, method in by_name.items() for number in range(len(method.samples)))


def grid_of(qparams: Quantization | None) -> tuple[float, int] | None:
    """Return the scale and the zero point. QNN stores the scale as float32."""
    return None if qparams is None else (float(np.float32(qparams.scale[0])), qparams.zero_point[0])


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
