"""The methods of a program with a changed scheme, and the noise of their samples at the rung `designed`. For a worker.

The steps of a model with states run one after the other, by the loop of the device: a step reads the states that the
steps before it have written in the device's arithmetic. It reads eager PyTorch's tokens, so that the same steps are
compared with and without a change.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from executorch.exir import EdgeProgramManager

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import Design, ExportedMethod, LoweredMethod, Operator, PlannedStep, Quantization, StepPlan
from qnnsweep.tasks.records.stages import by_place
from qnnsweep.tasks.toolchain import runner
from qnnsweep.tasks.toolchain.edge import output_noise
from qnnsweep.tasks.toolchain.reference.designed import DesignedRuns
from qnnsweep.tasks.toolchain.reference.graph import ReferenceGraph


@dataclass(frozen=True, kw_only=True, slots=True)
class DesignedMethod:
    """A method with a changed scheme, and its samples."""

    before: LoweredMethod
    """The method before the change."""
    program: EdgeProgramManager
    operators: Sequence[Operator]
    reference: ReferenceGraph
    design: Design
    runs: DesignedRuns
    samples: Sequence[tuple[torch.Tensor, ...]]
    """The inputs of the samples in eager PyTorch's own run: of the first ones, among which samples may be chosen."""
    eager: Mapping[str, torch.Tensor]
    input_grids: Sequence[Quantization | None]
    output_grids: Sequence[Quantization | None]

    @property
    def exported(self) -> ExportedMethod:
        return self.before.exported


def noise_of_samples(methods: Sequence[DesignedMethod]) -> Iterator[float]:
    """Yield the noise of every sample, method by method. Raises EvidenceError if the host cannot compute one."""
    for method in methods:
        for number, sample in enumerate(method.samples):
            yield output_noise(method.runs(sample), method.eager, number)


def noise_of_steps(methods: Sequence[DesignedMethod], plan: StepPlan) -> Iterator[float]:
    """Yield the noise of every step, method by method.

    Raises EvidenceError if the host cannot compute a step, or if a state would be read on another grid than it is
    written, which it was not before the change.
    """
    by_name = {method.exported.name: method for method in methods}
    for link in plan.links:
        writer, reader = by_name[link.method], by_name[link.to_method]
        was_equal = _grid(writer.before.output_grid(link.output)) == _grid(reader.before.input_qparams[link.input])
        if was_equal and _grid(writer.output_grids[link.output]) != _grid(reader.input_grids[link.input]):
            state = reader.exported.inputs[link.input].name
            raise EvidenceError(f"the state {state} would be written on one grid and read on another")
    samples: dict[tuple[int, int], int] = {}
    for method in methods:
        samples |= by_place((method.exported.positions or ())[: len(method.samples)])
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


def _grid(qparams: Quantization | None) -> tuple[float, int] | None:
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
