"""Layers whose largest weight of each channel is positive, the value that HTP's kernels of 16 bits do not hold."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(48, 24), (6, 48)),
    "conv": (lambda: nn.Conv2d(8, 16, 3, padding=1), (1, 8, 10, 10)),
    "depthwise": (lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16), (1, 16, 9, 9)),
    "transposed": (lambda: nn.ConvTranspose2d(8, 8, 3, stride=2, padding=1), (1, 8, 6, 6)),
}


class FineWeights(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = LAYERS[kind][0]()
        with torch.no_grad():
            weight = self.layer.weight
            rows = weight.transpose(0, 1) if kind == "transposed" else weight
            for row in rows:  # each channel of the result
                row *= torch.sign(row.flatten()[row.abs().argmax()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def samples(kind: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(LAYERS[kind][1], generator=generator) for _ in range(4)]
