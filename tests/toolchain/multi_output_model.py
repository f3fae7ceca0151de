"""A model with several outputs, some of which nothing reads, and its samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


class Best(torch.nn.Module):
    """The three strongest features of an image and where they are.

    The pooling's own indices and one part of the split are used by nobody.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.features = torch.nn.Conv2d(1, 12, 3, padding=1)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pooled = torch.nn.functional.max_pool2d(torch.relu(self.features(image)), 2, 2)
        first, _, last = torch.split(pooled.flatten(2).mean(2), 4, dim=1)
        values, where = torch.topk(first * last, 3)
        return values, where


def build() -> torch.nn.Module:
    return Best()


def samples(count: int) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(5)
    for _ in range(count):
        yield {"inputs": {"image": torch.rand(1, 1, 8, 8, generator=generator)}}
