"""Models with float16 and bfloat16 weights, converted to float32.

A compiled program has the precision of its scheme, whatever the precision of the weights is. PyTorch's answers with
narrow weights would be a reference with an error of its own.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from qnnsweep.tasks.toolchain.flat_module import forward_of, parameters_of, with_forward
from qnnsweep.tasks.toolchain.tensors import dtype_name

NARROW = (torch.float16, torch.bfloat16)
_CASTS: Mapping[object, Callable[..., Any]] = {
    torch.Tensor.half: torch.Tensor.float,
    torch.Tensor.bfloat16: torch.Tensor.float,
}


def narrow_dtypes(module: torch.nn.Module) -> tuple[str, ...]:
    """Return the dtypes of parameters and buffers that are narrower than float32."""
    found = dict.fromkeys(value.dtype for value in (*module.parameters(), *module.buffers()))
    return tuple(dtype_name(dtype) for dtype in found if dtype in NARROW)


def in_float32(module: torch.nn.Module) -> torch.nn.Module:
    """Convert the weights of a module to float32, and return a module that computes in float32.

    Where `forward` converts to float16 or bfloat16, the new module converts to float32.
    """
    forward = forward_of(module.float())

    def wide(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        with _InFloat32():
            return forward(self, *args, **kwargs)

    return with_forward(module, wide, parameters_of(module))


def widened(value: Any) -> Any:
    """Return a float16 or bfloat16 tensor in float32, and everything else as it is."""
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in NARROW else value


class _InFloat32(TorchFunctionMode):
    """Replaces float16 and bfloat16 by float32 in the arguments of all calls of PyTorch."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given: dict[str, Any] = tree_map(_wide_dtype, kwargs or {})
        return _CASTS.get(func, func)(*tree_map(_wide_dtype, args), **given)


def _wide_dtype(value: Any) -> Any:
    return torch.float32 if isinstance(value, torch.dtype) and value in NARROW else value
