"""Two convolutions over three dimensions that are one function. The HTP computes the first one wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


class Depth(torch.nn.Module):
    weights_origin = "random"

    def __init__(self, sliced: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.sliced = sliced
        self.convolution = torch.nn.Conv3d(32, 64, 3, stride=(1 if sliced else 2, 2, 2), padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convolution(x)
        return y[:, :, ::2] if self.sliced else y


def build(sliced: bool) -> torch.nn.Module:
    return Depth(sliced)


def samples(count: int) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield {"inputs": torch.randn(1, 32, 2, 8, 8, generator=generator)}
