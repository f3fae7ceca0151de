"""A model in two subgraphs: QNN does not support erf, which is computed on the CPU between them.

In the schemes with 16-bit activations, QNN converts the second operand of both matmuls, under the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


class Divided(torch.nn.Module):
    def __init__(self, is_shared: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        if is_shared:
            self.second = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squares = x @ self.first(x)
        erf = torch.erf(squares)
        return squares @ self.second(erf)


def build(is_shared: bool = False) -> torch.nn.Module:
    """Return the model. `is_shared`: whether both subgraphs call the same layer."""
    return Divided(is_shared)


def samples(count: int) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield {"inputs": {"x": torch.randn(1, 8, 8, generator=generator) * 2}}
