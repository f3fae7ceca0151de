"""A linear layer from 32 to 16 values and a ReLU: QNN does not end for 4-bit blocks and a debug program of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 24))


def samples(count: int) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield {"inputs": {"input": torch.randn(1, 48, generator=generator)}}
