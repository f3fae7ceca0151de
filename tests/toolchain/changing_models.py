"""Models that change themselves, their inputs or values that they read again, and models that only look like it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.register_buffer("memory", torch.ones(4, 8))
        self.register_buffer("mask", torch.arange(8) % 3 == 0)
        self.calls = 1


class Accumulates(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.memory.mul_(0.5).add_(x)
        return self.linear(self.memory)


class WritesACache(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.memory[1:2] = x[1:2]
        return self.linear(self.memory)


class Replaces(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.memory = self.memory * 0.5 + x
        return self.linear(self.memory)


class CountsInPython(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(x) * self.calls


class Trains(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, n = self.linear(x), self.norm
        return functional.batch_norm(h, n.running_mean, n.running_var, training=True)


class DropsOut(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(self.linear(x), 0.5, training=True)


class AddsNoise(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x + torch.randn_like(x))


class ChangesItsInput(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x += 1
        return self.linear(x)


class BranchesOnTheCompiler(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * (2 if torch.compiler.is_compiling() else 1)


class CountsCalls(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.memory += 1
        return self.linear(x)


class OverwritesABuffer(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.memory.copy_(x)
        return self.linear(self.memory)


class DrawsButDoesNotUse(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + 0 * torch.rand(8)


class Attends(Net):
    def __init__(self) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x[None], src_key_padding_mask=x[None, :, 0] > 0)


class Chains(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        h += 1.0
        return h.mul_(0.5).relu_()


class AssignsASlice(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        h[:, 2:5] = 0.25
        return self.linear(h)


class FillsAView(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        h[:2].masked_fill_(self.mask, 0.5)
        return self.linear(h)


class AddsToAView(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        first = h.view(2, 2, 8)[0]
        first += 1.0
        return self.linear(h)


class FillsAll(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        h.masked_fill_(self.mask, 0.5)
        return self.linear(h)


def build(kind: str) -> torch.nn.Module:
    module = globals()[kind]()
    module.weights_origin = "random"
    return module


def samples(count: int) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield {"inputs": {"x": torch.randn(4, 8, generator=generator)}}
