"""A model that only moves, compares and counts values. The compiler chooses the types of its kernels.

Its second output has no dimensions, and its third output has 64-bit integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


class Moving(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, flags: torch.Tensor, counts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x.reshape(1, 12), flags.any(), torch.floor_divide(counts, 3)


def build() -> torch.nn.Module:
    return Moving()


def samples(count: int) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        x, flags = torch.randn(3, 4, generator=generator), torch.randn(3, 3, generator=generator) > 0
        yield {"inputs": {"x": x, "flags": flags, "counts": torch.randint(-100, 100, (10,), generator=generator)}}
