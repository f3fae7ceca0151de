"""A model with an RMS norm, for which ExecuTorch's builder makes up a bias, and its samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


class Normed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = torch.nn.Linear(16, 16), torch.nn.RMSNorm(16), torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)))


def build() -> torch.nn.Module:
    return Normed()


def samples(count: int) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield {"inputs": {"x": torch.randn(1, 4, 16, generator=generator)}}
