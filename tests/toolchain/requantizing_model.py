"""A model with values that QNN converts to another grid.

In the schemes with 16-bit activations, the second operand of a matmul needs a symmetric grid.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


class Requantizing(torch.nn.Module):
    """A matmul with a part of a split, and two matmuls with the same value."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key = torch.nn.Linear(8, 8), torch.nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query = self.query(x)
        left, right = torch.split(self.key(x), 8, -1)
        return left @ right, left @ query, right @ query


def build() -> torch.nn.Module:
    return Requantizing()


def samples(count: int) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield {"inputs": {"x": torch.randn(1, 8, 8, generator=generator)}}
