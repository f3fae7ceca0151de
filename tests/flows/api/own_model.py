"""What a user has in a script or in a notebook: a module, labelled samples, and nothing of qnnsweep."""

from __future__ import annotations

import torch
from torch import nn

LINES = """
import torch
from torch import nn


class PlateReader(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.features = nn.Conv2d(3, 6, 3, stride=2)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 4)

    def forward(self, image, gain=None):
        pooled = torch.relu(self.norm(self.features(image))).mean((2, 3))
        return {"scores": self.head(pooled), "embedding": pooled, "unused": None}


torch.manual_seed(4)
samples = [(torch.randn(1, 3, 12, 12), number % 4) for number in range(20)]
model = PlateReader()
"""
"""Lines of a user, after which `model` and `samples` exist."""


class Adder(nn.Module):
    """Takes two inputs, of which one has a default."""

    def forward(self, left: torch.Tensor, right: torch.Tensor | None = None) -> torch.Tensor:
        return left if right is None else left + right
