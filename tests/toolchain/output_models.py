"""Models whose outputs have parts that a grid, a buffer or a branch can lose. Imported in workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

SIZE = 32


class Body(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU())
        self.head = nn.Conv2d(16, channels, 1)

    def answer(self, x: torch.Tensor) -> torch.Tensor:
        return 6 * self.head(self.body(x))


class Detector(Body):
    """Boxes in pixels beside scores, in the last axis."""

    def __init__(self) -> None:
        super().__init__(9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.answer(x).flatten(2).transpose(1, 2)
        return torch.cat([torch.sigmoid(rows[..., :4]) * 640, torch.softmax(rows[..., 4:], -1)], -1)


class ScaledDetector(Body):
    """The same in the channels, by a product with a constant behind the concatenation."""

    def __init__(self) -> None:
        super().__init__(9)
        self.scale = nn.Buffer(torch.tensor([500.0] * 4 + [1.0] * 5).view(1, 9, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.answer(x).flatten(2)
        return torch.cat([torch.tanh(y[:, :4]), torch.sigmoid(y[:, 4:])], 1) * self.scale


class Segmentation(Body):
    """Probabilities with classes that never occur."""

    def __init__(self) -> None:
        super().__init__(8)
        with torch.no_grad():
            self.head.bias[5:] = -2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.answer(x), 1)


class Sorted(Body):
    def __init__(self) -> None:
        super().__init__(24)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, indices = torch.sort(self.answer(x).mean((2, 3)), descending=True)
        return values, indices


class Largest(Body):
    def __init__(self) -> None:
        super().__init__(24)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = self.answer(x).mean((2, 3))
        values, indices = torch.topk(y, 6)
        return indices, torch.softmax(y, 1), values


class DeadBranch(nn.Module):
    """Two heads, of which the second reads values that are below the step of a grid that they share with the first."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(3, 8, 3, 2, 1)
        self.first, self.second = nn.Linear(8, 5), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        joined = torch.cat([300 * self.large(x), 0.2 * torch.relu(self.small(x))], 1).amax((2, 3))
        return self.first(joined[:, :8] / 300), self.second(5 * joined[:, 8:])


class Pooled(nn.Module):
    """A network that hardly depends on the order of the axes, with an error that does not look like noise."""

    def __init__(self, large: float = 100.0, small: float = 0.05) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Conv2d(3, 8, 3, padding=1) for _ in range(3))
        self.scales = (large, 1.0, small)
        self.mix, self.head = nn.Conv2d(24, 8, 1), nn.Linear(8, 5)
        with torch.no_grad():
            self.mix.weight[:, :8] /= large
            self.mix.weight[:, 16:] /= small

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branches = zip(self.branches, self.scales, strict=True)
        return self.head(
            functional.relu(self.mix(torch.cat([conv(x) * scale for conv, scale in branches], 1))).mean((2, 3))
        )


class Characters(nn.Module):
    """The logarithms of the probabilities of characters, step by step: [1, steps, characters]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, (2, 1), 1), nn.ReLU())
        self.head = nn.Linear(32, 37)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(self.head(self.body(x).mean(2).transpose(1, 2)), -1)


def model(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return globals()[kind]().eval()


def samples(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield smooth images with noise."""
    seeded = torch.Generator().manual_seed(seed)
    for _ in range(count):
        coarse = torch.randn(1, 3, SIZE // 4, SIZE // 4, generator=seeded)
        image = functional.interpolate(coarse, size=(SIZE, SIZE), mode="bilinear", align_corners=False)
        yield {"inputs": {"x": image + 0.1 * torch.randn(image.shape, generator=seeded)}}
