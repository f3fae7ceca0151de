"""The numbers of bits of the weights with the least noise under a limit, by the model of the device's arithmetic.

Only the rounding of the weights changes. The grids of the values stay, as they do when the quantizer rounds a weight in
another way. The sum of the noise of single changes is not the noise of all changes together. So the sum, which an
integer program minimizes, only says where the search begins. It then runs the choices with the smallest sums, and
exchanges bits between weights as long as this helps.

The errors of two coarse weights can cancel, on few samples by chance, and then not on others. So a weight that becomes
coarser although there is room for its bits must gain more than chance usually does.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from operator import ne
from typing import Any

import numpy as np
import torch

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.numerics.float_weights import float_weight
from qnnsweep.tasks.numerics.knapsack import least_sum
from qnnsweep.tasks.records import LoweredMethod, WeightBits, WeightChoices
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.deterministic import make_deterministic
from qnnsweep.tasks.toolchain.edge import output_noise
from qnnsweep.tasks.toolchain.quantize import input_names
from qnnsweep.tasks.toolchain.reference.designed import designed_outputs
from qnnsweep.tasks.toolchain.reference.graph import Call, ReferenceGraph, read_graph
from qnnsweep.tasks.toolchain.tensors import read_samples, read_tensors

_MOST_SAMPLES = 64
_LEAST_RUNS, _MOST_RUNS = 64, 1024
_MOST_WORK = 200_000_000  # elements of all runs, which take about as long as the elements are many
_MOST_LISTED = 100_000  # choices
_LEAST_GAIN = 0.998  # times the noise: 0.01 dB
_CHANCE = 10**0.03  # times the noise, 0.3 dB: less than this, a weight does not gain by being coarser than it need be
_AXIS = 3  # the position of the axis among the arguments of a call that dequantizes with one scale per channel
_Bits = tuple[int, ...]


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
    search = _Search(noise, known, most_bits - fixed)
    try:
        best = search.best()
    except EvidenceError:
        return []
    return (
        [WeightBits(operator=choices.operator, element_bits=bits) for choices, bits in zip(known, best, strict=True)]
        if best
        else []
    )


class _Search:
    """The search for the best bits: `weights` have together at most `most_bits`."""

    def __init__(self, noise: "_Noise", weights: Sequence[WeightChoices], most_bits: float) -> None:
        self._noise, self._weights, self._most_bits = noise, weights, most_bits
        self._most_runs = max(_LEAST_RUNS, min(_MOST_RUNS, _MOST_WORK // max(noise.elements, 1)))
        self._reached: dict[_Bits, float] = {}
        self._single: dict[tuple[int, int], float] = {}

    def best(self) -> _Bits | None:
        """Return the best bits; None if even the smallest are too many. Raises EvidenceError."""
        if not self._fits(tuple(min(choices.element_bits) for choices in self._weights)):
            return None
        now = tuple(choices.now for choices in self._weights)
        base = self._of(now)
        for place, choices in enumerate(self._weights):
            for bits in choices.element_bits:
                self._single[place, bits] = self._of((*now[:place], bits, *now[place + 1 :])) - base
        unit = max(base, float(np.finfo(float).tiny))
        items = [
            [(float(bits * choices.elements), self._single[place, bits] / unit) for bits in choices.element_bits]
            for place, choices in enumerate(self._weights)
        ]
        if (start := least_sum(items, self._most_bits)) is None:
            return None
        cheapest = tuple(choices.element_bits[number] for choices, number in zip(self._weights, start, strict=True))
        self._of(self._filled(cheapest))
        most_runs = len(self._reached) + self._most_runs
        if math.prod(len(choices.element_bits) for choices in self._weights) <= _MOST_LISTED:
            listed = filter(self._fits, product(*(choices.element_bits for choices in self._weights)))
            for bits in sorted(listed, key=self._expected)[: self._most_runs // 2]:
                self._of(bits)
        best = min(filter(self._fits, self._reached), key=self._judged)
        is_better = True
        while is_better:
            is_better = False
            for near in sorted(self._near(best), key=self._expected):
                if len(self._reached) >= most_runs:
                    return best
                if self._judged(near) < _LEAST_GAIN * self._judged(best):
                    best, is_better = near, True
                    break
        return best

    def _room(self, bits: _Bits) -> float:
        """Return how many more bits all weights together may have; it is negative if these are too many."""
        used = sum(new * choices.elements for new, choices in zip(bits, self._weights, strict=True))
        return self._most_bits - used

    def _fits(self, bits: _Bits) -> bool:
        return self._room(bits) >= 0

    def _judged(self, bits: _Bits) -> float:
        """Return the noise, and more of it if a weight is coarser than it need be."""
        return self._of(bits) * (1 if next(self._finer(bits), None) is None else _CHANCE)

    def _filled(self, bits: _Bits) -> _Bits:
        """Return the bits after the coarser weights were made finer, as far as there is room."""
        while finer := min(self._finer(bits), key=self._expected, default=None):
            bits = finer
        return bits

    def _finer(self, bits: _Bits) -> Iterator[_Bits]:
        """Yield the bits with one of the coarser weights finer by one choice, if there is room for it."""
        room = self._room(bits)
        for place, choices in enumerate(self._weights):
            if bits[place] < choices.now:
                new = min(other for other in choices.element_bits if other > bits[place])
                if (new - bits[place]) * choices.elements <= room:
                    yield (*bits[:place], new, *bits[place + 1 :])

    def _near(self, bits: _Bits) -> Iterator[_Bits]:
        """Yield the bits that fit and differ at one or two weights, and the same without weights that are coarser."""
        for places in (*combinations(range(len(bits)), 1), *combinations(range(len(bits)), 2)):
            for changed in product(*(self._weights[place].element_bits for place in places)):
                near = list(bits)
                for place, new in zip(places, changed, strict=True):
                    near[place] = new
                if sum(map(ne, near, bits)) == len(places) and self._fits(tuple(near)):
                    yield tuple(near)
                    yield self._filled(tuple(near))

    def _expected(self, bits: _Bits) -> float:
        """Return the sum of the noise of single changes."""
        return sum(self._single[place, number] for place, number in enumerate(bits))

    def _of(self, bits: _Bits) -> float:
        if bits not in self._reached:
            self._reached[bits] = self._noise(
                {choices.operator: number for choices, number in zip(self._weights, bits, strict=True)}
            )
        return self._reached[bits]


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
