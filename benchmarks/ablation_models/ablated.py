"""Small networks with one or two dominant sources of error each, for benchmarks/ablation.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


class Residual(nn.Module):
    """Two convolutions around a shortcut whose values are much larger."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.body = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.PReLU(16), nn.Conv2d(16, 16, 3, padding=1))
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head((8 * x + self.body(x)).mean((2, 3)))


class Outlier(nn.Module):
    """A channel of the weights is a hundred times larger than the others, in a layer that is rounded per tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 32), nn.Linear(32, 8)
        with torch.no_grad():
            self.first.weight[0] *= 100

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class Mixer(nn.Module):
    """A block of a mixer: norm, mixing of tokens, GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.tokens, self.channels = nn.LayerNorm(24), nn.Linear(16, 16), nn.Linear(24, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + nn.functional.gelu(self.channels(x))


class Narrow(nn.Module):
    """Values that leave the calibrated range: the evaluation's inputs are three times as large."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv1d(4, 8, 5), nn.Conv1d(8, 4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x)) * x[:, :1, 2:-2].square())


class Heads(nn.Module):
    """Two outputs in other units: boxes in pixels and scores."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 12, 3, stride=2), nn.Hardswish(), nn.Conv2d(12, 12, 3), nn.LeakyReLU())
        self.boxes, self.scores = nn.Conv2d(12, 4, 1), nn.Conv2d(12, 6, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.trunk(x)
        return 200 * torch.sigmoid(self.boxes(x)), self.scores(x).softmax(1)


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = {kind.__name__.lower(): kind for kind in (Residual, Outlier, Mixer, Narrow, Heads)}[name]()
    model.weights_origin = "random"
    return model.eval()


def noise(count: int, seed: int, shape: list[int], scale: float = 1.0) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    for number in range(count):
        yield {"inputs": {"x": scale * torch.randn(*shape, generator=generator)}, "name": f"noise {number}"}
