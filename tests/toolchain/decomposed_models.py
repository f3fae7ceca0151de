"""Models whose operators are taken apart and put together on their way to the edge graph. Imported in workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Norms and attention: one node of the exported graph is several operators."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.norm = nn.LayerNorm(16)
        self.into = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        heads = (head.view(1, 6, 2, 8).transpose(1, 2) for head in self.into(normed).split(16, dim=-1))
        query, key, value = heads
        mixed = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(1, 6, 16)
        return normed + functional.softmax(functional.gelu(self.out(mixed)), dim=-1)


class Folded(nn.Module):
    """A batch norm that becomes part of a convolution, activations in place, dropout, a split."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.features = nn.Sequential(
            nn.Conv2d(2, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True), nn.Dropout(0.3),
            nn.Conv2d(8, 8, 1), nn.Hardswish(inplace=True), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        for layer in self.features:
            if isinstance(layer, nn.BatchNorm2d):
                layer.weight.data.uniform_(0.5, 2)
                layer.running_mean.uniform_(-0.2, 0.2)  # type: ignore[union-attr]
                layer.running_var.uniform_(0.1, 0.5)  # type: ignore[union-attr]
        self.head = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.head(self.features(x).flatten(1)).split(3, dim=1)
        return left.relu_() + right.clone()


SHAPES = {"attention": (1, 6, 16), "folded": (1, 2, 6, 6)}


def attention() -> nn.Module:
    return Attention().eval()


def folded() -> nn.Module:
    return Folded().eval()


def samples(count: int, name: str) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(5)
    for _ in range(count):
        yield {"inputs": {"x": torch.rand(SHAPES[name], generator=generator)}}
