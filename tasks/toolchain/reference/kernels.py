"""The reference graph's operators as functions of NumPy arrays: called anew, or asked which elements they read."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_map

from tasks.toolchain.reference.graph import GETITEM, NoKernel, ReferenceGraph

_DATA_MOVEMENT_OPS = frozenset(
    (
        "aten._to_copy", "aten.alias_copy", "aten.cat", "aten.clone", "aten.constant_pad_nd", "aten.expand_copy",
        "aten.index_select", "aten.permute_copy", "aten.select_copy", "aten.slice_copy", "aten.split_with_sizes_copy",
        "aten.squeeze_copy", "aten.stack", "aten.t_copy", "aten.transpose_copy", "aten.unsqueeze_copy",
        "aten.view_copy",
        "dim_order_ops._to_dim_order_copy", "dim_order_ops._clone_dim_order",
    )
)  # fmt: skip

Array = NDArray[Any]
Value = Array | tuple[Array, ...]


class HostKernels:
    """Calls of one reference graph on one sample's inputs. Constants are computed once."""

    def __init__(self, graph: ReferenceGraph, inputs: Sequence[Array]) -> None:
        self._graph = graph
        self._inputs = [torch.from_numpy(np.array(each)) for each in inputs]
        self.sources = graph.sources
        self.outputs = graph.output_calls
        self.constants = frozenset(graph.constant_calls)
        self.data_movement_ops = frozenset(index for index, call in enumerate(graph.calls) if _moves(call.target))
        self.getitem_index = {
            index: call.arguments[1] for index, call in enumerate(graph.calls) if call.target == GETITEM
        }
        self.refusals: dict[int, str] = {}
        """Why a call could not be made."""
        self._constants: dict[int, Any] = {}
        with torch.no_grad():
            for index in graph.constant_calls:
                self._constants[index] = self._made(index, self._constants)

    def call(self, index: int, values: Mapping[int, Value]) -> Value | None:
        """The call's value on these values of the others; None, with a word in `refusals`, where the host has none."""
        if index in self._constants:
            return _as_numpy(self._constants[index])
        with torch.no_grad():
            made = self._made(index, _Torch(values, self._constants))
        return None if made is None else _as_numpy(made)

    def gradient(
        self, index: int, source: int, values: Mapping[int, Value], weights: Sequence[Array | None]
    ) -> Array | None:
        """|d(sum of weighted outputs) / d element| for each element of `source`, at these values.

        `weights`: one array an output, None for one that nobody reads. None where there is no derivative: an integer
        on either side, or a kernel that has none.
        """
        given = _Torch(values, self._constants)
        point = given[source]
        if not isinstance(point, torch.Tensor) or not point.is_floating_point():
            return None
        point = point.clone().requires_grad_()
        with torch.enable_grad():
            made = self._made(index, _With(given, source, point))
            answers = made if isinstance(made, tuple | list) else (made,)
            pairs = [
                (answer, torch.from_numpy(weight))
                for answer, weight in zip(answers, weights, strict=True)
                if weight is not None and isinstance(answer, torch.Tensor) and answer.requires_grad
            ]
            if not pairs:
                return None
            try:
                (slope,) = torch.autograd.grad(
                    [answer for answer, _ in pairs], [point], [weight.to(answer.dtype) for answer, weight in pairs]
                )
            except (RuntimeError, NotImplementedError):
                return None
        return slope.abs().numpy()

    def answer(self, values: Mapping[int, Value]) -> list[Array]:
        """The graph's final outputs, given these values of its calls."""
        answers = self._graph.answer(_Torch(values, self._constants), self._inputs)
        return [each.numpy() for each in answers if isinstance(each, torch.Tensor)]

    def _made(self, index: int, values: Mapping[int, Any]) -> Any:
        if index in self.refusals:
            return None
        try:
            return self._graph.call(index, values, self._inputs)
        except NoKernel as error:
            self.refusals[index] = str(error)
        except KeyError as error:
            self.refusals[index] = f"reads operator {error}, which has no value"
        return None


def _moves(target: str) -> bool:
    """Whether an operator hands elements on unchanged, some of them perhaps."""
    return target.rpartition(".")[0] in _DATA_MOVEMENT_OPS or target == GETITEM


class _Torch(Mapping[int, Any]):
    """Values as torch tensors, made when asked for; constants are there already."""

    def __init__(self, values: Mapping[int, Value], constants: Mapping[int, Any]) -> None:
        self._values = values
        self._constants = constants

    def __getitem__(self, index: int) -> Any:
        if index in self._constants:
            return self._constants[index]
        return tree_map(torch.from_numpy, self._values[index])

    def __iter__(self) -> Any:
        return iter({**self._constants, **self._values})

    def __len__(self) -> int:
        return len({**self._constants, **self._values})


class _With(_Torch):
    """The same values but for one."""

    def __init__(self, given: _Torch, index: int, value: torch.Tensor) -> None:
        super().__init__(given._values, given._constants)
        self._index = index
        self._value = value

    def __getitem__(self, index: int) -> Any:
        return self._value if index == self._index else super().__getitem__(index)


def _as_numpy(value: Any) -> Value:
    return tuple(each.numpy() for each in value) if isinstance(value, tuple | list) else value.numpy()
