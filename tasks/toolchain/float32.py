"""Models that compute in float16, bfloat16 or float64, converted to float32.

A compiled program has the precision of its scheme, whatever the precision of the weights is. PyTorch's answers with
narrow weights would be a reference with an error of its own, and no backend and no quantizer knows float64.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from qnnsweep.tasks.errors import raise_shortage
from qnnsweep.tasks.toolchain.flat_module import forward_of, parameters_of, with_forward
from qnnsweep.tasks.toolchain.tensors import dtype_name

OTHER_FLOATS = (torch.float16, torch.bfloat16, torch.float64)
_CASTS: Mapping[object, Callable[..., Any]] = {
    torch.Tensor.half: torch.Tensor.float,
    torch.Tensor.bfloat16: torch.Tensor.float,
    torch.Tensor.double: torch.Tensor.float,
}


def other_floats(module: torch.nn.Module) -> tuple[str, ...]:
    """Return the dtypes of floating-point parameters and buffers other than float32."""
    found = dict.fromkeys(value.dtype for value in (*module.parameters(), *module.buffers()))
    return tuple(dtype_name(dtype) for dtype in found if dtype in OTHER_FLOATS)


def computes_in_float64(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> bool:
    """Return whether a module makes float64 tensors of these inputs; False if it cannot run."""
    with torch.no_grad(), _Float64Seen() as seen:
        try:
            module(*(value.clone() for value in inputs))
        except Exception as error:  # noqa: BLE001 - a user's own code may raise anything, and is run again
            raise_shortage(error)
            return False
    return seen.found


def in_float32(module: torch.nn.Module) -> torch.nn.Module:
    """Convert the weights of a module to float32, and return a module that computes in float32.

    Where `forward` converts to float16, bfloat16 or float64, the new module converts to float32.
    """
    forward = forward_of(module.float())

    def converted(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        with _InFloat32():
            return forward(self, *args, **kwargs)

    return with_forward(module, converted, parameters_of(module))


def as_float32(value: Any) -> Any:
    """Return a float16, bfloat16 or float64 tensor in float32, and everything else as it is."""
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in OTHER_FLOATS else value


class _Float64Seen(TorchDispatchMode):
    """Notes whether an operator has a float64 result."""

    found = False

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        leaves = tree_leaves(result)
        self.found |= any(isinstance(leaf, torch.Tensor) and leaf.dtype is torch.float64 for leaf in leaves)
        return result


class _InFloat32(TorchFunctionMode):
    """Replaces other floating-point dtypes by float32 in the arguments of all calls of PyTorch."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given: dict[str, Any] = tree_map(_float32, kwargs or {})
        return _CASTS.get(func, func)(*tree_map(_float32, args), **given)


def _float32(value: Any) -> Any:
    return torch.float32 if isinstance(value, torch.dtype) and value in OTHER_FLOATS else value
