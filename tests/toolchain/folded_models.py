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


class Windows(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x * torch.hann_window(8))


class SpacesEvenly(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x + torch.linspace(-1, 1, 8))


class AddsTheIdentity(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x + torch.eye(4, 8))


class TakesATriangle(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = torch.tril_indices(4, 4)
        return (self.linear(x) @ self.linear(x).T)[rows, columns]


class CountsUp(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x * torch.arange(8.0) + torch.ones(8) + torch.full((4, 1), 2.0))


class ScalesABuffer(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x * (self.table / 8).cos())


class ViewsABuffer(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x + self.table.view(2, 4).reshape(8)[None, :])


class ScalesAWeight(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.linear.weight / self.linear.weight.norm())


class AddsAnAdapter(Net):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = torch.nn.Linear(8, 2, bias=False), torch.nn.Linear(2, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.linear.weight + self.up.weight @ self.down.weight, self.linear.bias)


class StandardizesAWeight(Net):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(4, 4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.convolution.weight
        weight = torch.nn.functional.batch_norm(weight[None].flatten(2), None, None, training=True).view_as(weight)
        return torch.nn.functional.conv1d(self.linear(x)[None], weight, self.convolution.bias)


class ConvolvesCausally(Net):
    """A convolution with a stored weight of two dimensions, as state space models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.conv1d(self.linear(x)[None], self.weight.unsqueeze(1), padding=2, groups=4)
        return padded[:, :, :8]


class TransposesAWeight(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.linear.weight.t(), self.linear.bias)


class AddsParameters(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        token = (self.embedding.weight[:1] + self.linear.bias).expand(4, -1)
        return self.linear(torch.cat([token, x]))


class LooksUpPositions(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.embedding(torch.arange(4))


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


def samples(count: int, seed: int = 0, last: float = 0.5) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        values = torch.rand(4, 8, generator=generator)
        values[3, 7] = last
        yield {"inputs": values}
