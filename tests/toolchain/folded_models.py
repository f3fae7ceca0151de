"""Models with values that depend on no input, and models with values that only look like it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(8, 8)
        self.embedding = torch.nn.Embedding(4, 8)
        self.table = torch.nn.Buffer(torch.arange(8.0))


class Sinusoidal(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frequencies = torch.exp(torch.arange(4) * (-math.log(10000.0) / 4))
        angles = x[:, :1] * frequencies
        return self.linear(torch.cat([angles.sin(), angles.cos()], -1))


class RelativePositions(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        distance = torch.arange(4)[None, :] - torch.arange(4)[:, None]
        bucket = torch.log(distance.abs().float() + 1).long()
        return self.linear(x) + self.embedding(bucket).sum(1)


class ScalesABuffer(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x * (self.table / 8).cos())


class ViewsABuffer(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x + self.table.view(2, 4).reshape(8)[None, :])


class ScalesAWeight(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.linear.weight / self.linear.weight.norm())


class FillsAMask(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(4, 8) + 1
        before = mask * 2
        mask[1:2] = 0
        return self.linear(x) * mask + before


class DrawsNumbers(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + 0 * torch.rand(8).cos()


class AppendsToAnEmptyCache(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keys = torch.cat([torch.tensor([]), self.linear(x)], -2)
        both = torch.cat([torch.zeros(0, 8), keys, x])
        return both * torch.cat([torch.tensor([], dtype=torch.float32), x.long()]).sum()


def build(kind: str) -> torch.nn.Module:
    return globals()[kind]()


def samples(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield {"inputs": torch.rand(4, 8, generator=generator)}
