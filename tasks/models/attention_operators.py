"""The operators of transformers as cases of a collection. ExecuTorch's operator tests have none of them."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual name

Shape = tuple[int, ...]

_HEADS: Shape = (1, 4, 16, 32)
_TOKENS: Shape = (1, 16, 64)


class _Apply(nn.Module):
    """A module that calls a function with its inputs."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.function(*tensors)


class _TimesConstant(nn.Module):
    """A matrix product whose second factor is a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 48) / 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.matmul(x, self.weight)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _rotated(x: Tensor) -> Tensor:
    return torch.cat([-x[..., 16:], x[..., :16]], dim=-1)


_CASES: dict[str, tuple[str, Callable[[], nn.Module], tuple[Shape, ...]]] = {
    "matmul_of_activations": ("matmul", lambda: _Apply(torch.matmul), (_HEADS, (1, 4, 32, 16))),
    "matmul_with_a_parameter": ("matmul", _TimesConstant, (_TOKENS,)),
    "bmm_of_activations": ("bmm", lambda: _Apply(torch.bmm), ((4, 16, 32), (4, 32, 16))),
    "linear_without_bias": ("linear", lambda: nn.Linear(64, 48, bias=False), (_TOKENS,)),
    "softmax_of_scores": ("softmax", lambda: nn.Softmax(dim=-1), ((1, 4, 16, 16),)),
    "layer_norm": ("layer_norm", lambda: nn.LayerNorm(64), (_TOKENS,)),
    "rms_norm": ("rms_norm", lambda: nn.RMSNorm(64), (_TOKENS,)),
    "attention": ("scaled_dot_product_attention", lambda: _Apply(F.scaled_dot_product_attention), (_HEADS,) * 3),
    "causal_attention": ("scaled_dot_product_attention", lambda: _Apply(_causal), (_HEADS,) * 3),
    "rotated_halves": ("rotary_embedding", lambda: _Apply(_rotated), (_HEADS,)),
}
"""By name: the operator, the module and the shapes of its inputs."""


def cases() -> Iterator[dict[str, Any]]:
    """Yield the cases, for `model.cases`."""
    for name, (operator, _, shapes) in _CASES.items():
        inputs = {f"tensors_{index}": torch.zeros(shape) for index, shape in enumerate(shapes)}
        yield {"name": name, "operator": operator, "arguments": {"case": name}, "inputs": inputs}


def module(case: str) -> nn.Module:
    """Return the module of a case, with random weights."""
    torch.manual_seed(0)
    return _CASES[case][1]()


def inputs(count: int, *, case: str) -> list[dict[str, Any]]:
    """Return normally distributed inputs of a case for several seeds."""
    return list(islice(_inputs(_CASES[case][2]), count))


def _inputs(shapes: tuple[Shape, ...]) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    while True:
        tensors = (torch.randn(shape, generator=generator) for shape in shapes)
        yield {"inputs": {f"tensors_{index}": tensor for index, tensor in enumerate(tensors)}}
