"""Models of which torch.export makes no program, or none for all inputs, and models with what to write instead."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from folded_models import samples as samples


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(8, 8)


class Branches(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        if h.mean() > 0:
            h = h * 2
        return h


class Loops(Net):
    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        while x.sum() < 1000:
            x = x * 2
        return {"y": self.linear(x), "none": None}


class ChoosesWithWhere(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        return torch.where(h.mean() > 0, h * 2, h)


class TakesANumber(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * x.max().item()


class TakesTheTensor(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * x.max()


class Selects(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)[x > 0.5]


class Suppresses(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import torchvision

        h = self.linear(x)
        return h[torchvision.ops.nms(h[:, :4], h[:, 4], 0.5)]


class TransformsToComplex(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(self.linear(x)).abs()


class TransformsByTables(Net):
    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(8), torch.arange(5)) * torch.pi / 4
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        return ((h @ self.cos) ** 2 + (h @ self.sin) ** 2).sqrt()


class Inverts(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        return torch.linalg.inv(h.transpose(0, 1) @ h + torch.eye(8))


class InvertsAConstant(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) @ torch.linalg.inv(torch.eye(8) * 2)


class TakesTheLargest(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.topk(self.linear(x), 3).values


class CallsNumPy(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.tensor(np.unwrap(x.numpy())))


class WritesJson(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        text = json.dumps({"width": x.shape[1]})
        return self.linear(x) * len(text)


class Misspells(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.liner(x)  # type: ignore[operator]


def build(kind: str) -> torch.nn.Module:
    return globals()[kind]()
