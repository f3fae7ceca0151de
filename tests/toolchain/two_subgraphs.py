"""A network that an operator on the CPU divides into two subgraphs with inserted nodes of the same names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


class TwoSubgraphs(torch.nn.Module):
    """Convolutions before and after an addition, whose inputs the backend permutes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(4, 4, 3, padding=1)
        self.second = torch.nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first(x)) * 3
        h = h + 0.5
        return torch.sigmoid(self.second(h)) * 0.1


def build() -> TwoSubgraphs:
    torch.manual_seed(0)
    return TwoSubgraphs()


def samples(count: int) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield {"inputs": {"x": torch.randn(1, 4, 8, 8, generator=generator)}}
