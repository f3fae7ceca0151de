"""The design of a 16a8w program, and HTP's 16-bit arithmetic. Runs in workers.

The design is the edge graph on the host, with every noted grid applied by exact rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qnnsweep.tasks.numerics.dequantize import dequantize, quantize
from qnnsweep.tasks.numerics.element_use import Kernels
from qnnsweep.tasks.records import Operator, Quantization
from qnnsweep.tasks.toolchain.reference.graph import ReferenceGraph

Array = NDArray[Any]
Values = dict[int, Any]
Codes = Callable[[Mapping[int, Array]], Array]
"""A function that computes an operator's quantized values from the values of its sources."""

ADD, LINEAR, MATMUL, SOFTMAX = (
    "aten.add.Tensor",
    "aten.linear.default",
    "aten.matmul.default",
    "aten._softmax.default",
)


class Host:
    """One sample's edge graph, with the grids of the design and, on request, HTP's arithmetic.

    `requantized`: in graph order, the symmetric grids to which HTP converts the second operands of matmuls.
    """

    def __init__(
        self,
        operators: Sequence[Operator],
        graph: ReferenceGraph,
        kernels: Kernels,
        requantized: Sequence[Quantization],
    ) -> None:
        self.operators, self.kernels, self._graph = operators, kernels, graph
        operands = sorted({self.operand(index, 1) for index in self.all_of(MATMUL)})
        self.requantized = dict(zip(operands, requantized, strict=True))
        makers = {ADD: self._add, LINEAR: self._linear, MATMUL: self._matmul}
        self.formulas: dict[int, Codes] = {
            index: make(index) for target, make in makers.items() for index in self.all_of(target)
        }
        self.score_adds = [self.operand(index, 0) for index in self.all_of(SOFTMAX)]
        """The operators that add the mask to attention scores."""

    def all_of(self, target: str) -> list[int]:
        calls = enumerate(self._graph.calls)
        return [index for index, call in calls if call.target == target and index not in self.kernels.constants]

    def operand(self, index: int, position: int) -> int:
        """Return the operator that computes the operand at this position."""
        return self._graph.calls[index].arguments[position]["operator"]

    def qparams(self, index: int) -> Quantization:
        qparams = self.operators[index].quantization
        assert qparams is not None
        return qparams

    def rounds(self, index: int, value: object) -> bool:
        """Return whether the design applies the operator's grid to its value."""
        is_float = isinstance(value, np.ndarray) and value.dtype.kind == "f"
        return is_float and self.operators[index].quantization is not None and index not in self.kernels.clamped

    def run(
        self,
        *,
        formulas: Collection[int] = (),
        added: Mapping[int, Array] | None = None,
        replaced: Mapping[int, Array] | None = None,
        unrounded: Collection[int] = (),
    ) -> Values:
        """Return every operator's value.

        `formulas`: operators that are computed with HTP's arithmetic.
        `added`: steps that are added to an operator's rounded value.
        `replaced`: values that replace an operator's value.
        `unrounded`: operators to whose value no grid is applied.
        """
        added, replaced, values = added or {}, replaced or {}, {}
        for index in range(len(self._graph.calls)):
            if index in replaced:
                values[index] = replaced[index].astype(np.float32)
                continue
            if index in formulas:
                codes = self.formulas[index](values)
            else:
                values[index] = value = self.kernels.call(index, values)
                if not isinstance(value, np.ndarray) or not self.rounds(index, value) or index in unrounded:
                    continue
                codes = quantize(value, self.qparams(index))
            codes = _clipped(codes + added.get(index, 0), self.qparams(index))
            values[index] = dequantize(codes, self.qparams(index)).astype(np.float32)
        return values

    def answer(self, values: Values) -> Array:
        return self.kernels.answer(values)[0].astype(np.float64)

    def _add(self, index: int) -> Codes:
        """HTP multiplies each addend by a 16-bit integer. All integers of an addition are multiples of 2**-bits."""
        sources, out = (self.operand(index, 0), self.operand(index, 1)), self.qparams(index)
        grids = [self.qparams(source) for source in sources]
        ratios = [ratio(qparams, out) for qparams in grids]
        bits = min(15, math.floor(math.log2(2**15 / max(ratios))))
        addends = [(*pair, round(factor * 2**bits)) for *pair, factor in zip(sources, grids, ratios, strict=True)]

        def codes(values: Mapping[int, Array]) -> Array:
            total = sum(_centered(values[source], qparams) * factor for source, qparams, factor in addends)
            return _clipped(_half_up(total / 2**bits) + out.zero_point[0], out)

        return codes

    def _linear(self, index: int) -> Codes:
        """HTP drops the lowest 8 bits: of the sum of products by rounding down, of the bias by rounding to zero."""
        source, weight, bias = (self.operand(index, position) for position in range(3))
        qparams, out = self.qparams(source), self.qparams(index)
        weights, biases, scales = self._constant(weight, 0), self._constant(bias, 0), self._constant(weight, 1)
        constant = np.trunc(biases / 256) - _half_up(qparams.zero_point[0] * weights.sum(1) / 256)
        factors = 256 * qparams.scale[0] * scales / out.scale[0]

        def codes(values: Mapping[int, Array]) -> Array:
            total = np.floor(quantize(values[source], qparams) @ weights.T / 256) + constant
            return _clipped(np.rint(total * factors) + out.zero_point[0], out)

        return codes

    def _matmul(self, index: int) -> Codes:
        """HTP drops the lowest 16 bits of the sum of products by rounding down."""
        left, right = self.operand(index, 0), self.operand(index, 1)
        qparams, out = self.qparams(left), self.qparams(index)
        factor = 2**16 * qparams.scale[0] * self.requantized[right].scale[0] / out.scale[0]

        def codes(values: Mapping[int, Array]) -> Array:
            operand = values[converted(right)] if converted(right) in values else self._requantize(values, right)
            zero = _half_up(qparams.zero_point[0] * operand.sum(-2, keepdims=True) / 2**16)
            total = np.floor(quantize(values[left], qparams) @ operand / 2**16) - zero
            return _clipped(np.rint(total * factor) + out.zero_point[0], out)

        return codes

    def _requantize(self, values: Mapping[int, Array], operand: int) -> Array:
        qparams, symmetric = self.qparams(operand), self.requantized[operand]
        factor = round(ratio(qparams, symmetric) * 2**15)
        return _clipped(_half_up(_centered(values[operand], qparams) * factor / 2**15), symmetric)

    def _constant(self, index: int, position: int) -> Array:
        name = self._graph.calls[index].arguments[position]["constant"]
        return self._graph.constants[name].numpy().astype(np.float64)


def converted(operand: int) -> int:
    """Return the key, in a mapping of values, of an operand that the device converted to its symmetric grid."""
    return -1 - operand


def ratio(source: Quantization, target: Quantization) -> float:
    """Return the step of the source in steps of the target."""
    return source.scale[0] / target.scale[0]


def _centered(values: Array, qparams: Quantization) -> Array:
    return quantize(values, qparams) - qparams.zero_point[0]


def _clipped(codes: Array, qparams: Quantization) -> Array:
    return np.clip(codes, qparams.quant_min, qparams.quant_max)


def _half_up(values: Array) -> Array:
    return np.floor(values + 0.5)
