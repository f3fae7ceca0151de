"""The model of the device's arithmetic as a module of PyTorch: any number of samples, at the speed of the host.

It is the rung `designed` (docs/ladder.md): every value is rounded as the lowering asked the compiler to round it. What
the device computes beyond this is not in it; the column `device_snr_db` of a run says how much that is.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from qnnsweep.tasks.errors import EvidenceError, RequestError
from qnnsweep.tasks.records import LoweredMethod, TensorSpec
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.reference.designed import arithmetic_of
from qnnsweep.tasks.toolchain.reference.kernels import HostKernels
from qnnsweep.tasks.toolchain.reference.stored_graph import device_graph
from qnnsweep.tasks.toolchain.tensors import dtype_name


class Simulator(nn.Module):
    """One method of a lowered model as the device is asked to compute it. It has no derivatives."""

    def __init__(self, lowered: LoweredMethod, store: Store) -> None:
        """Raises RequestError for a program that the host cannot compute."""
        super().__init__()
        if lowered.designed_unavailable is not None:
            raise RequestError(f"the host cannot compute this program: {lowered.designed_unavailable}")
        graph = device_graph(lowered, store)
        self._arithmetic = arithmetic_of(graph, lowered.operators, lowered.input_qparams, lowered.design)
        self._kernels = HostKernels(graph, (), halves=self._arithmetic.halves)
        self.inputs: tuple[TensorSpec, ...] = lowered.exported.inputs
        """The names, dtypes and shapes of the inputs, in the order of `forward`."""
        self.outputs: tuple[str, ...] = tuple(spec.name for spec in lowered.exported.outputs)
        """The names of the outputs."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Return the outputs for one sample, or for a batch of samples, which are computed one by one.

        `inputs`: with the dtypes and shapes of `self.inputs`. If the first dimension of every input is n times as long,
        it is a batch of n samples, and the first dimensions of the outputs are. Raises RequestError for other shapes.
        """
        parts = [self._sample(sample) for sample in self._samples(inputs)]
        outputs = parts[0] if len(parts) == 1 else tuple(map(torch.cat, zip(*parts, strict=True)))
        return outputs[0] if len(outputs) == 1 else outputs

    def _samples(self, inputs: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
        wanted = [_form(spec.dtype, spec.shape) for spec in self.inputs]
        given = [_form(dtype_name(tensor.dtype), tensor.shape) for tensor in inputs]
        if given == wanted:
            return [tuple(inputs)]
        lengths = [spec.shape[0] if spec.shape else 0 for spec in self.inputs]
        if len(given) == len(wanted) and all(lengths) and all(tensor.ndim for tensor in inputs):
            parts = [tensor.split(length) for tensor, length in zip(inputs, lengths, strict=True)]
            if len({len(part) for part in parts}) == 1:
                samples = list(zip(*parts, strict=True))
                if all([_form(dtype_name(one.dtype), one.shape) for one in sample] == wanted for sample in samples):
                    return samples
        takes, are = ", ".join(wanted), ", ".join(given)
        raise RequestError(f"the program takes {takes}, or a batch of such inputs; these inputs are {are}")

    def _sample(self, sample: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        arrays = [np.ascontiguousarray(tensor.detach().cpu().numpy()) for tensor in sample]
        outputs = self._arithmetic.run(self._kernels, arrays, lambda *_: False)
        if outputs is None:
            raise EvidenceError(next(iter(self._kernels.refusals.values())))
        return tuple(map(torch.from_numpy, outputs))


def _form(dtype: str, shape: Sequence[int]) -> str:
    return f"{dtype} {'×'.join(map(str, shape)) or 'scalar'}"
