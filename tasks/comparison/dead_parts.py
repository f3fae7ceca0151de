"""The search for dead parts of final outputs, with what the reference graph says about how the outputs are assembled.

This module runs in worker processes, because it asks PyTorch which elements of an output an operator wrote.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from qnnsweep.tasks.comparison.outputs import FinalOutputs, Tensors
from qnnsweep.tasks.numerics.dead_parts import Assembly, Part, check_dead_parts
from qnnsweep.tasks.numerics.element_use import Kernels, Value
from qnnsweep.tasks.records import IoCheck, LoweredMethod
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.entrypoints import reference_kernels

_JOINS = frozenset({"aten.cat.default", "aten.stack.default"})
_ELEMENTWISE = frozenset(
    (
        "aten.add.Scalar", "aten.add.Tensor", "aten.clamp.default", "aten.div.Scalar", "aten.div.Tensor",
        "aten.hardtanh.default", "aten.mul.Scalar", "aten.mul.Tensor", "aten.neg.default", "aten.relu.default",
        "aten.sub.Scalar", "aten.sub.Tensor",
    )
)  # fmt: skip
"""The operators that, with constants as their other operands, do not mix the elements of different operators."""


def dead_parts(lowered: LoweredMethod, finals: FinalOutputs, store: Store) -> Iterator[IoCheck]:
    """Yield two checks per final output: whether it depends on the input, and whether a part of it is constant."""
    samples = [sample for sample in range(len(finals.exported.sample_names)) if sample not in finals.diverged]
    assemblies = _Assemblies(lowered, store)
    for index, spec in enumerate(finals.exported.outputs) if samples else ():

        def of_all(tensors: Tensors, index: int = index) -> NDArray[Any]:
            return np.stack([tensors[tensor_key(sample, index)] for sample in samples])

        design = None if finals.design is None else of_all(finals.design)
        eager, device = of_all(finals.eager), of_all(finals.rungs["device"])
        yield from check_dead_parts(spec.name, eager, device, design, lambda index=index: assemblies.of(index))


class _Assemblies:
    """How the final outputs are assembled, by the reference graph, which is read when it is needed."""

    def __init__(self, lowered: LoweredMethod, store: Store) -> None:
        self._lowered, self._store = lowered, store

    def of(self, output: int) -> Assembly:
        """Return how a final output is assembled."""
        result = self._kernels.results[output]
        if result is None:
            return Assembly()
        grid = self._lowered.operators[result].quantization
        operators = self._operators(result)
        masks = {operator: self._mask(result, operator, operators) for operator in operators}
        names = {operator: self._lowered.operators[operator].name for operator in operators}
        return Assembly(
            step=max(grid.scale) if grid else 0.0,
            parts=[
                Part(operator=names[operator], mask=mask)
                for operator, mask in masks.items()
                if mask is not None and mask.any()
            ]
            if len(operators) > 1
            else (),
        )

    @cached_property
    def _kernels(self) -> Kernels:
        exported = self._lowered.exported
        inputs = load(self._store.read(exported.evaluation))
        return reference_kernels(self._lowered, self._store)(
            [inputs[tensor_key(0, spec.name)] for spec in exported.inputs]
        )

    def _operators(self, index: int) -> list[int]:
        """Return the operators whose values are joined to the value of an operator; itself if it is not joined."""
        joined = self._join(index)
        if joined is None:
            return [index]
        return list(dict.fromkeys(part for source in self._varying(joined) for part in self._operators(source)))

    def _join(self, index: int) -> int | None:
        """Return the join whose elements an operator returns, perhaps moved or scaled by constants."""
        target = self._lowered.operators[index].target
        if target in _JOINS:
            return index
        sources = self._varying(index)
        moves = index in self._kernels.data_movement_ops or target in _ELEMENTWISE
        return self._join(sources[0]) if moves and len(sources) == 1 else None

    def _varying(self, index: int) -> Sequence[int]:
        return [source for source in self._kernels.sources[index] if source not in self._kernels.constants]

    def _mask(self, index: int, marked: int, parts: Sequence[int]) -> NDArray[np.bool_] | None:
        """Return the elements of operator `index` that `marked` wrote: those that become NaN with it."""

        def value(index: int) -> Value | None:
            if index in parts:
                filling = np.nan if index == marked else 0.0
                return np.full(self._lowered.operators[index].shape or (), filling, np.float32)
            sources = {source: value(source) for source in self._varying(index)}
            known = {source: of_source for source, of_source in sources.items() if of_source is not None}
            return self._kernels.call(index, known) if len(known) == len(sources) else None

        result = value(index)
        return np.isnan(result) if isinstance(result, np.ndarray) and result.dtype.kind == "f" else None
