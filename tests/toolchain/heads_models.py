"""Heads that are normalised one by one, as the keys of Qwen3, for any number of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

WIDTH, HEADS, SIZE = 32, 2, 16


class Heads(torch.nn.Module):
    weights_origin = "random"

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.key = torch.nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.norm = torch.nn.RMSNorm(SIZE, eps=1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.key(x).view(1, x.shape[1], HEADS, SIZE).transpose(1, 2)
        return self.norm(heads).transpose(2, 3)


def build(tokens: int) -> torch.nn.Module:
    return Heads()


def samples(count: int, tokens: int) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield {"inputs": torch.randn(1, tokens, WIDTH, generator=generator)}
