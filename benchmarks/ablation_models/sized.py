"""Three small networks whose six layers differ in what their weights cost, for benchmarks/repair_optimum.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

LAYERS = 6


class Chain(nn.Module):
    """Linear layers one after the other, with other functions between them."""

    shape = (1, 48)

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        sizes = zip([self.shape[1], *widths[:-1]], widths, strict=True)
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x) if number == LAYERS - 1 else (torch.relu, torch.tanh)[number % 2](layer(x))
        return x


class Images(nn.Module):
    """Convolutions with a shortcut, a mean over the positions, and a linear layer."""

    shape = (1, 3, 12, 12)

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        first, second, third, fourth, *_ = widths
        self.stem = nn.Conv2d(3, first, 3, padding=1)
        self.wide, self.narrow = nn.Conv2d(first, second, 3, padding=1), nn.Conv2d(second, first, 1)
        self.down = nn.Conv2d(first, third, 3, stride=2)
        self.mixed, self.head = nn.Conv2d(third, fourth, 1), nn.Linear(fourth, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = x + self.narrow(torch.relu(self.wide(x)))
        return self.head(torch.relu(self.mixed(torch.relu(self.down(x)))).mean((2, 3)))


class Tokens(nn.Module):
    """Attention with one head, and two linear layers, over eight tokens."""

    shape = (1, 8, 32)

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        width, hidden = self.shape[2], widths[0]
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.joined, self.wide, self.narrow = (
            nn.Linear(width, width),
            nn.Linear(width, hidden),
            nn.Linear(hidden, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2) / self.shape[2] ** 0.5
        x = x + self.joined(scores.softmax(-1) @ self.value(x))
        return x + self.narrow(torch.relu(self.wide(x)))


KINDS = {"chain": Chain, "images": Images, "tokens": Tokens}


def network(kind: str, seed: int) -> nn.Module:
    """Return a network. The seed chooses the widths, the weights, and how much the rows of a layer differ in size."""
    torch.manual_seed(seed)
    widths = torch.randint(1, 7, (LAYERS,)).mul(16).tolist()
    model = KINDS[kind](widths)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                rows = torch.logspace(-0.5, 0.5, len(layer.weight)) ** torch.rand(1).mul(3)
                layer.weight *= rows.reshape(-1, *[1] * (layer.weight.ndim - 1))
                layer.weight.view(len(layer.weight), -1)[:, 0] *= 1 + 6 * torch.rand(1)
    return model


def samples(count: int, kind: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yield samples of the normal distribution."""
    generator = torch.Generator().manual_seed(seed)
    for number in range(count):
        yield {"inputs": {"x": torch.randn(KINDS[kind].shape, generator=generator)}, "name": f"sample {number}"}
