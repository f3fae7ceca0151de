"""Heads that read two values of other sizes with the same parameters, as the heads of a detector do."""

from __future__ import annotations

import copy

import torch
from torch import nn


class SharedHead(nn.Module):
    """`near` reads a value, and `far` reads a tenth of it. They are one layer, or copies of it."""

    def __init__(self, layer: str, copied: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        of_layer = {"conv": lambda: nn.Conv2d(8, 4, 3, padding=1), "linear": lambda: nn.Linear(8, 4)}
        self.body = nn.Conv2d(3, 8, 3, padding=1) if layer == "conv" else nn.Linear(6, 8)
        self.near = of_layer[layer]()
        self.near.bias.data.mul_(8)
        self.far = copy.deepcopy(self.near) if copied else self.near

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.body(x).relu()
        return self.near(h), self.far(h * 0.1)


def samples(layer: str) -> list[torch.Tensor]:
    torch.manual_seed(2)
    return [torch.randn(1, 3, 8, 8) if layer == "conv" else torch.randn(1, 6) for _ in range(8)]
