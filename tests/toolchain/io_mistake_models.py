"""Models whose inputs and outputs look alike, and the same with a mistake in them. Imported in workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

SHAPE = (1, 2, 4, 6)


def answer(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Meets its inputs in an order of its own: b, a, c."""
    return torch.relu(2 * b - a) + 0.25 * c


def second(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(a + b) - c


class One(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return answer(a, b, c)


class TakesAnotherOrder(torch.nn.Module):
    def forward(self, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return answer(a, b, c)


class TakesChannelsLast(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return answer(a, b.reshape(1, 4, 6, 2).permute(0, 3, 1, 2), c)


class GivesChannelsLast(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return answer(a, b, c).permute(0, 2, 3, 1).reshape(SHAPE)


class GivesCodes(torch.nn.Module):
    """Reals where the model has reals, but they are the codes of a grid."""

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.round(answer(a, b, c) / 0.01) + 7


class GivesAnotherType(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.round((answer(a, b, c) - 2) * 100).to(torch.int32)


class Two(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return answer(a, b, c), second(a, b, c)


class TwoChangedPlaces(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return second(a, b, c), answer(a, b, c)


class Words(torch.nn.Module):
    """Two inputs that may change places, and a mask: a word's number is none."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(10, 4)
        self.mask = torch.nn.Embedding(2, 4)

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (self.words(a) + self.words(b)) * self.mask(c)


def model(kind: str) -> torch.nn.Module:
    return globals()[kind]()


def samples(count: int, words: bool = False) -> Iterator[dict[str, Any]]:
    seeded = torch.Generator().manual_seed(0)
    for _ in range(count):
        if words:
            a, b, c = (torch.randint(low, high, (1, 6), generator=seeded) for low, high in ((2, 10), (2, 10), (0, 2)))
        else:
            a, b, c = (2 * torch.rand(SHAPE, generator=seeded) + offset for offset in (-1, 1, -1))
        yield {"inputs": {"a": a, "b": b, "c": c}}
