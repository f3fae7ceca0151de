"""A model with two methods of one module, and their samples. Both methods have an operator `linear`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

FEATURES = 24


class TwoMethods(nn.Module):
    """An image becomes features, and features become scores."""

    weights_origin = "random"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.image = nn.Conv2d(1, width, 3, padding=1)
        self.features = nn.Linear(64 * width, FEATURES)
        self.scores = nn.Linear(FEATURES, 10)

    def encode(self, image: torch.Tensor) -> torch.Tensor:
        return self.features(torch.relu(self.image(image)).flatten(1))

    def classify(self, features: torch.Tensor, gain: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.scores(torch.relu(features * gain))
        return scores, scores.softmax(-1)


def build(width: int = 4) -> TwoMethods:
    return TwoMethods(width)


def images(count: int) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield {"inputs": {"image": torch.rand(1, 1, 8, 8, generator=generator)}}


def features(count: int) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(2)
    for number in range(count):
        tensors = {name: torch.randn(1, FEATURES, generator=generator) for name in ("features", "gain")}
        yield {"inputs": tensors, "name": f"features {number}"}
