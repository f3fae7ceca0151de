"""The reference graph's operators as functions of NumPy arrays, and their derivatives."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from qnnsweep.tasks.errors import raise_shortage
from qnnsweep.tasks.numerics.element_use import Array, Value, Weights
from qnnsweep.tasks.toolchain.data_movement import moves_data
from qnnsweep.tasks.toolchain.nodes import GETITEM
from qnnsweep.tasks.toolchain.reference.between import RunBetween
from qnnsweep.tasks.toolchain.reference.graph import NoKernel, ReferenceGraph, index_of, is_float


def _along(source: torch.Tensor, indices: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    if dim is None:
        return source.reshape(-1)[indices]
    return source.gather(dim, indices) if keepdim else source.gather(dim, indices.unsqueeze(dim)).squeeze(dim)


def _largest(source: torch.Tensor, indices: torch.Tensor, _: int, dim: int = -1, *__: bool) -> torch.Tensor:
    return source.gather(dim, indices)


def _sorted(source: torch.Tensor, indices: torch.Tensor, dim: int = -1, *_: bool) -> torch.Tensor:
    return source.gather(dim, indices)


def _pooled(source: torch.Tensor, indices: torch.Tensor, *_: Any) -> torch.Tensor:
    return source.flatten(-2).gather(-1, indices.flatten(-2)).reshape(indices.shape)


# The calls whose output, by its position, is indices into the call's first input; and how they select elements.
_SELECTIONS: Mapping[tuple[str, int], Callable[..., torch.Tensor]] = {
    ("aten.argmax.default", 0): _along,
    ("aten.argmin.default", 0): _along,
    ("aten.max.dim", 1): _along,
    ("aten.min.dim", 1): _along,
    ("aten.topk.default", 1): _largest,
    ("aten.sort.default", 1): _sorted,
    ("aten.argsort.default", 0): _sorted,
    ("aten.max_pool2d_with_indices.default", 1): _pooled,
}

# The derivative of such a call with respect to an input does not depend on this input, if no other input is the same.
_LINEAR = frozenset(
    (
        "aten._adaptive_avg_pool2d", "aten.adaptive_avg_pool2d", "aten.add", "aten.addmm", "aten.avg_pool2d",
        "aten.bmm", "aten.convolution", "aten.linear", "aten.matmul", "aten.mean", "aten.mm", "aten.mul", "aten.sub",
        "aten.sum",
    )
)  # fmt: skip


class HostKernels:
    """The calls of one graph, for one sample's inputs: the `Kernels` of `qnnsweep.tasks.numerics.element_use`."""

    def __init__(
        self,
        graph: ReferenceGraph,
        inputs: Sequence[Array],
        exact_inputs: Sequence[Array] = (),
        halves: frozenset[int] = frozenset(),
    ) -> None:
        """`exact_inputs`: the inputs before they are rounded to the device's grids. They may be left out.

        `halves`: the calls that read their constants in float16.
        """
        self._exact_graph, self.halves = graph, halves
        self._graph = graph.with_half_constants() if halves else graph
        self._inputs, self._exact_inputs = _copied(inputs), _copied(exact_inputs)
        self.sources = graph.sources
        self.outputs = graph.output_calls
        self.results = tuple(output.get("operator") if isinstance(output, dict) else None for output in graph.outputs)
        """Per final output, the call that returns it; None for an input of the model and for a constant."""
        self.constants = frozenset(graph.constant_calls)
        self.clamped = graph.clamped_calls
        self.misread_biases = graph.misread_biases
        self.data_movement_ops = frozenset(index for index, call in enumerate(graph.calls) if moves_data(call.target))
        self.linear = frozenset(
            index
            for index, call in enumerate(graph.calls)
            if call.target.rpartition(".")[0] in _LINEAR and len(set(self.sources[index])) == len(self.sources[index])
        )
        self.getitem_index = {
            index: call.arguments[1] for index, call in enumerate(graph.calls) if call.target == GETITEM
        }
        self.quantizing = {
            index: source
            for index, call in enumerate(graph.calls)
            if ".quantize_per_" in call.target
            and index not in self.constants
            and (source := index_of(call.arguments[0])) is not None
        }
        self.refusals: dict[int, str] = {}
        """Per call that could not be computed, the reason."""
        self._constants: dict[int, Any] = {}
        with torch.no_grad():
            for index in graph.constant_calls:
                if (value := self._compute(index, self._constants)) is not None:
                    self._constants[index] = value

    def on(self, inputs: Sequence[Array], exact_inputs: Sequence[Array] = ()) -> "HostKernels":
        """Return these kernels on other inputs, with the same constants. The arguments are those of `__init__`."""
        other = copy.copy(self)
        other._inputs, other._exact_inputs = _copied(inputs), _copied(exact_inputs)
        other.refusals = dict(self.refusals)
        return other

    def call(
        self,
        index: int,
        values: Mapping[int, Value],
        inputs: Sequence[Array] | None = None,
        *,
        exact_constants: bool = False,
    ) -> Value | None:
        """Compute a call from other calls' values. If that fails, return None and add the reason to `refusals`.

        `inputs`: those of the model, None for those of the kernels. `exact_constants`: whether the call reads the
        graph's constants before they are rounded to float16.
        """
        if index in self._constants:
            return _as_numpy(self._constants[index])
        tensors = None if inputs is None else _as_tensors(inputs)
        with torch.no_grad():
            value = self._compute(
                index, self._tensors(self.sources[index], values), tensors, exact_constants=exact_constants
            )
        return None if value is None else _as_numpy(value)

    def exact_constants(self) -> dict[int, Value]:
        """Return the values of the constant calls that are rounded to float16, before this rounding."""
        exact: dict[int, Any] = {}
        with torch.no_grad():
            for index in sorted(self._constants.keys() & self.halves):
                value = self._compute(index, self._constants | exact, exact_constants=True)
                exact |= {} if value is None else {index: value}
        return {index: _as_numpy(value) for index, value in exact.items()}

    def reads_halves(self, index: int) -> bool:
        """Return whether a call reads constants that are rounded to float16."""
        return index in self.halves and self._graph.reads_constants(index)

    def call_on_exact_inputs(self, index: int, values: Mapping[int, Value]) -> Value | None:
        """See `qnnsweep.tasks.numerics.element_use.Kernels`. Without `exact_inputs`, the result is None."""
        if not self._exact_inputs or index not in self._graph.reading_inputs:
            return None
        with torch.no_grad():
            value = self._compute(index, self._tensors(self.sources[index], values), self._exact_inputs)
        return None if value is None else _as_numpy(value)

    def gradient(self, index: int, source: int, values: Mapping[int, Value], weights: Weights) -> Array | None:
        """Return |d(sum of the weighted outputs of call `index`) / d(element)| for every element of `source`'s value.

        `weights`: returns one array per output of the call, None for an output that nothing reads. Returns None if
        there is no derivative: `source` or the outputs are integers, or the kernel is not differentiable.
        """
        tensors = self._tensors(self.sources[index], values)
        point = tensors[source]
        if not is_float(point):
            return None
        point = point.detach().requires_grad_()  # shares memory: no kernel changes its inputs
        with torch.enable_grad():
            value = self._compute(index, tensors | {source: point})
            if value is None:
                return None
            outputs = value if isinstance(value, tuple | list) else (value,)
            weighted = [
                (output, torch.from_numpy(weight).to(output.dtype))
                for output, weight in zip(
                    outputs, weights([output.detach().numpy() for output in outputs]), strict=True
                )
                if weight is not None and output.requires_grad
            ]
            if not weighted:
                return None
            try:
                (slope,) = torch.autograd.grad(
                    [output for output, _ in weighted], [point], [weight for _, weight in weighted]
                )
            except RuntimeError as error:
                raise_shortage(error)
                return None
        return slope.abs().numpy()

    def picked(self, index: int, indices: Array, values: Mapping[int, Value]) -> Array | None:
        """Return the elements that `indices` select from the value that call `index` reads.

        Return None if the call's own value is no indices, or if `indices` do not fit the value that the call reads.
        """
        call = self._graph.calls[index]
        position = 0
        if call.target == GETITEM:
            position, index = call.arguments[1], self.sources[index][0]
            call = self._graph.calls[index]
        if (call.target, position) not in _SELECTIONS or not self.sources[index]:
            return None
        source = self._tensors(self.sources[index], values).get(self.sources[index][0])
        if not isinstance(source, torch.Tensor):
            return None
        try:
            return _SELECTIONS[call.target, position](source, torch.from_numpy(indices), *call.arguments[1:]).numpy()
        except (RuntimeError, IndexError) as error:
            raise_shortage(error)
            return None

    def answer(self, values: Mapping[int, Value], inputs: Sequence[Array] | None = None) -> list[Array]:
        """Return the graph's final outputs. `values`: the values of the calls that the outputs read."""
        tensors = self._inputs if inputs is None else _as_tensors(inputs)
        outputs = self._graph.answer(self._tensors(self.outputs, values), tensors)
        return [output.numpy() for output in outputs if isinstance(output, torch.Tensor)]

    def changed_constants(self, errors: Mapping[int, Array]) -> dict[int, Value]:
        """Return the values of constants without their errors, and of all constants that depend on them."""
        changed: dict[int, Any] = {}
        with torch.no_grad():
            for index, value in self._constants.items():
                if index in errors:
                    changed[index] = value - torch.from_numpy(np.asarray(errors[index]))
                elif any(source in changed for source in self.sources[index]):
                    again = self._compute(index, self._constants | changed)
                    changed |= {} if again is None else {index: again}
        return {index: _as_numpy(value) for index, value in changed.items()}

    def between(
        self, inputs: Sequence[Array], constants: Mapping[int, Value], errors: Mapping[int, Array], fraction: float
    ) -> RunBetween:
        """Return a run with a fraction of every error. Raises NoDerivative if the graph itself rounds activations."""
        constants = self._constants | self._tensors(constants, constants)
        return RunBetween(self._exact_graph, inputs, constants, errors, fraction)

    def _tensors(self, indices: Iterable[int], values: Mapping[int, Value]) -> dict[int, Any]:
        """Return the values of the calls `indices` as tensors. A call without a value is left out."""
        return {
            index: tree_map(torch.from_numpy, values[index]) if index in values else self._constants[index]
            for index in indices
            if index in self._constants or index in values
        }

    def _compute(
        self,
        index: int,
        values: Mapping[int, Any],
        inputs: Sequence[torch.Tensor] | None = None,
        *,
        exact_constants: bool = False,
    ) -> Any:
        if index in self.refusals:
            return None
        graph = self._graph if index in self.halves and not exact_constants else self._exact_graph
        try:
            return graph.call(index, values, self._inputs if inputs is None else inputs)
        except NoKernel as error:
            self.refusals[index] = str(error)
        except KeyError as error:
            self.refusals[index] = f"reads operator {error}, which has no value"
        return None


def _copied(arrays: Iterable[Array]) -> list[torch.Tensor]:
    return [torch.from_numpy(np.array(array)) for array in arrays]


def _as_tensors(arrays: Iterable[Array]) -> list[torch.Tensor]:
    return [torch.from_numpy(np.asarray(array, order="C")) for array in arrays]


def _as_numpy(value: Any) -> Value:
    return tuple(tensor.numpy() for tensor in value) if isinstance(value, tuple | list) else value.numpy()
