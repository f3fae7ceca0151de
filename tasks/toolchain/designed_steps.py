"""The methods with a changed scheme, and the noise of their samples at the rung `designed`. For a worker."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from executorch.exir import EdgeProgramManager

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import Design, ExportedMethod, LoweredMethod, Operator, Quantization, StepPlan
from qnnsweep.tasks.toolchain.edge import output_noise
from qnnsweep.tasks.toolchain.host_steps import HostMethod, outputs_of_steps
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
    hosts = [HostMethod(exported=method.exported, samples=method.samples, run=method.runs) for method in methods]
    noise = {
        (name, number): output_noise(outputs, by_name[name].eager, number)
        for name, number, outputs in outputs_of_steps(hosts, plan)
    }
    yield from (noise[name, number] for name, method in by_name.items() for number in range(len(method.samples)))


def _grid(qparams: Quantization | None) -> tuple[float, int] | None:
    """Return the scale and the zero point. QNN stores the scale as float32."""
    return None if qparams is None else (float(np.float32(qparams.scale[0])), qparams.zero_point[0])
