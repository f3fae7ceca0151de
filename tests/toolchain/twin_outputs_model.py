"""A model with two outputs of one shape, which a runtime could exchange, and its samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


class Twins(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tanh(self.left(x)), torch.sigmoid(self.right(x))


def build() -> torch.nn.Module:
    return Twins()


def samples(count: int) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield {"inputs": {"x": torch.randn(1, 8, generator=generator)}}
