"""A model of equal blocks with comparisons, topk and argmax: operators whose values are booleans and indices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from qnnsweep.tasks.models.reproducible import reproducible

FEATURES = 16


class Picks(nn.Module):
    """Each block keeps the features that are larger than another layer's, and says where the largest features are."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(blocks))
        self.second = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        indices: list[torch.Tensor] = []
        for first, second in zip(self.first, self.second, strict=True):
            left, right = first(x), second(x)
            larger = torch.where(left > right, left, right * 0.5)
            indices += [torch.argmax(larger, -1), torch.topk(left, 4).indices]
            x = torch.where(larger < x, larger, x + left)
        return x, *indices


def picks_model(blocks: int) -> nn.Module:
    """Return the model with `blocks` blocks and random weights."""
    with reproducible(seed=0):
        model: Any = Picks(blocks)
    model.weights_origin = "random"
    return model.eval()


def samples(count: int, *, seed: int) -> Iterator[dict[str, Any]]:
    """Yield `count` samples of normally distributed features."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield {"inputs": {"x": torch.randn(1, 8, FEATURES, generator=generator)}}
