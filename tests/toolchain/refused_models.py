"""Models that the compiler refuses, or of which it leaves an operator to a CPU that cannot run it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from qnnsweep.tasks.models.torchvision_import import torchvision


class DecaysFromArange(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, torch.exp(torch.arange(16) * -0.1)


class WritesARow(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[:, :, 0] = 1
        return y.relu()


class FillsWithASmallMask(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.arange(32).view(4, 8) % 3 == 0)
        self.convolution = torch.nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.convolution(x)
        h = torch.masked_fill(h, self.mask, 0.5)
        return self.convolution(h)


class Multiplies(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.matmul(x, x.transpose(2, 3))


class PadsAround(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(4, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(x + 1)
        h = torch.nn.functional.pad(h, (1, 1, 1, 1), mode="circular")
        return self.convolution(h)


class TakesAlong(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(x + 1)
        taken = torch.take_along_dim(h, torch.tensor([[[[0, 3, 5]]]]), dim=-1)
        return taken * 2


class LooksUpARemainder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(3, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        numbers = (x * 10).int() % 3
        return self.table(numbers).relu()


class SumsABag(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bag((x.flatten(1) * 3).long())


def vision_transformer() -> Any:
    """Return a vision transformer with one layer, whose addition behind the attention is refused in 16 bits."""
    package: Any = torchvision()
    return package.models.VisionTransformer(
        image_size=224, patch_size=16, num_layers=1, num_heads=4, hidden_dim=64, mlp_dim=128
    )


def build(kind: str) -> torch.nn.Module:
    module = globals()[kind]()
    module.weights_origin = "random"
    return module


def samples(count: int, shape: Sequence[int] = (1, 4, 4, 8)) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield {"inputs": {"x": torch.rand(*shape, generator=generator)}}
