"""The numbers of bits of the weights with the least noise under a limit, by the model of the device's arithmetic.

Only the rounding of the weights changes. The grids of the values stay, as they do when the quantizer rounds a weight in
another way.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.numerics.bit_search import Bits, BitSearch
from qnnsweep.tasks.numerics.float_weights import float_weight
from qnnsweep.tasks.records import LoweredMethod, WeightBits, WeightChoices
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.deterministic import make_deterministic
from qnnsweep.tasks.toolchain.edge import output_noise
from qnnsweep.tasks.toolchain.quantize import input_names
from qnnsweep.tasks.toolchain.reference.designed import designed_outputs
from qnnsweep.tasks.toolchain.reference.graph import Call, ReferenceGraph
from qnnsweep.tasks.toolchain.reference.stored_graph import read_graph
from qnnsweep.tasks.toolchain.tensors import read_samples, read_tensors

_MOST_SAMPLES = 64
_LEAST_RUNS, _MOST_RUNS = 64, 1024
_MOST_WORK = 200_000_000  # elements of all runs, which take about as long as the elements are many
_AXIS = 3  # the position of the axis among the arguments of a call that dequantizes with one scale per channel


def best_bits(
    method: LoweredMethod, weights: Sequence[WeightChoices], most_bits: float, store: Store
) -> list[WeightBits]:
    """Return the number of bits of every weight with the least mean noise of the samples that was found.

    `most_bits`: of all these weights. Returns an empty list if the host cannot compute the noise, or if even the
    smallest numbers of bits are too many.
    """
    make_deterministic()
    if method.designed_unavailable is not None:
        return []
    noise = _Noise(method, weights, store)
    known = [choices for choices in weights if choices.operator in noise.known]
    fixed = sum(choices.elements * choices.now for choices in weights if choices.operator not in noise.known)
    most_runs = max(_LEAST_RUNS, min(_MOST_RUNS, _MOST_WORK // max(noise.elements, 1)))

    def of_bits(bits: Bits) -> float:
        return noise({choices.operator: number for choices, number in zip(known, bits, strict=True)})

    try:
        best = BitSearch(of_bits, known, most_bits - fixed, most_runs).best()
    except EvidenceError:
        return []
    return (
        [WeightBits(operator=choices.operator, element_bits=bits) for choices, bits in zip(known, best, strict=True)]
        if best
        else []
    )


class _Noise:
    """The mean noise of the samples' worst final outputs, as a function of the bits of the weights."""

    def __init__(self, method: LoweredMethod, weights: Sequence[WeightChoices], store: Store) -> None:
        exported, floats = method.exported, method.quantized.float_weights
        self._method = method
        self._graph = graph = read_graph(store, method.reference_calls, method.reference_constants)
        count = min(method.choosable, _MOST_SAMPLES)
        self._samples = read_samples(store, exported.evaluation, input_names(exported), count)
        self._eager = read_tensors(store, exported.outputs_eager)
        self._floats: dict[str, torch.Tensor] = {}
        self._sources: dict[str, int] = {}
        self._rounded: dict[tuple[str, int], torch.Tensor] = {}
        tensors = {} if floats is None else read_tensors(store, floats)
        arrays = {name: tensor.float().numpy() for name, tensor in tensors.items()}
        constants: dict[int, Any] = {}
        for index in graph.constant_calls:
            constants[index] = graph.call(index, constants, ())
        indices = {operator.name: operator.index for operator in method.operators}
        for choices in weights:
            for source in graph.sources[indices[choices.operator]]:
                if graph.dequantizes(source) and constants[source].ndim > 1:
                    weight = float_weight(method.operators[source], constants[source].float().numpy(), arrays)
                    if weight is not None:
                        self._floats[choices.operator] = torch.from_numpy(np.array(weight))
                        self._sources[choices.operator] = source

    @property
    def elements(self) -> int:
        """The number of elements that a run computes with: of the weights, and of the values of every sample."""
        sizes = [math.prod(operator.shape or ()) for operator in self._method.operators if not operator.constant]
        return sum(tensor.numel() for tensor in self._graph.constants.values()) + len(self._samples) * sum(sizes)

    @property
    def known(self) -> frozenset[str]:
        """The operators of whose weights the floats are known."""
        return frozenset(self._floats)

    def __call__(self, bits: Mapping[str, int]) -> float:
        """Return the noise. `bits`: by operator. Raises EvidenceError if the host cannot compute the program."""
        method, calls, constants = self._method, list(self._graph.calls), dict(self._graph.constants)
        for operator, number in bits.items():
            source, name = self._sources[operator], f"weight of {operator}"
            if (operator, number) not in self._rounded:
                largest = 2 ** (number - 1) - 1
                if number == 16 and method.design.largest_weight is not None:  # the scheme of this choice fits them
                    largest = method.design.largest_weight
                self._rounded[operator, number] = _rounded(self._floats[operator], largest, calls[source])
            constants[name] = self._rounded[operator, number]
            calls[source] = Call(target="aten.alias.default", arguments=({"constant": name},), keywords={}, dtype=None)
        graph = ReferenceGraph(calls, self._graph.outputs, constants)
        answers = designed_outputs(graph, method.operators, method.input_qparams, method.design, self._samples)
        if isinstance(answers, str):
            raise EvidenceError(answers)
        return float(np.mean([output_noise(answer, self._eager, sample) for sample, answer in enumerate(answers)]))


def _rounded(weight: torch.Tensor, largest: int, call: Call) -> torch.Tensor:
    """Return a weight after rounding to a symmetric grid, with the axis of the scales of the call that dequantizes.

    `largest`: the largest quantized value.
    """
    if "per_channel" in call.target:
        axes = [axis for axis in range(weight.ndim) if axis != int(call.arguments[_AXIS]) % weight.ndim]
        scale = weight.abs().amax(axes, keepdim=True) / largest
    else:
        scale = weight.abs().max() / largest
    scale = scale.clamp(min=torch.finfo(torch.float32).eps)
    return (weight / scale).round().clamp(-largest, largest) * scale
