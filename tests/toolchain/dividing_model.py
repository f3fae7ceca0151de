"""A network whose debug program computes something else than its shipping program: convolution, relu, batch norm."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [1, 16, 16, 16]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, 3, padding=1) for before, after in itertools.pairwise(widths)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths[1:])
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = norm(torch.relu(convolution(x)))
        return self.head(x.mean((2, 3)))


def build() -> nn.Module:
    """Return the network with random weights and statistics."""
    generator = torch.Generator().manual_seed(0)
    model = Blocks()
    for value in [*model.parameters(), *model.buffers()]:
        if value.dtype.is_floating_point:
            value.data = torch.rand(value.shape, generator=generator) - 0.5
    for norm in model.norms:
        norm.running_var.data += 1.5
        norm.weight.data += 1.0
    return model.eval()


def samples(count: int) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield {"inputs": {"x": torch.randn(1, 1, 16, 16, generator=generator)}}
