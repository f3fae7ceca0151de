"""Models with operators that HTP's kernels compute wrongly."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def trained(norm: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) -> nn.Module:
    """Return a batch norm with statistics and parameters as after a training."""
    for held, low, high in ((norm.running_var, 0.2, 1.0), (norm.weight, 0.5, 1.5)):
        if held is not None:
            nn.init.uniform_(held, low, high)
    for held in (norm.running_mean, norm.bias):
        if held is not None:
            nn.init.normal_(held, 0, 0.2)
    return norm


class BeforeActivation(nn.Module):
    """A block that normalizes before it activates, as in DenseNet: no convolution takes its batch norms in."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.stem, self.inner = nn.Conv2d(3, 16, 3, bias=False), nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.first, self.second = trained(nn.BatchNorm2d(16)), trained(nn.BatchNorm2d(32))
        self.out, self.head = nn.Conv2d(32, 16, 1), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(self.stem(x), 2)
        x = torch.cat([x, self.inner(self.first(x).relu())], 1)
        return self.head(self.out(self.second(x).relu()).mean((2, 3)))


class RoundedUp(nn.Module):
    """A pool whose last windows are beyond the border, which HTP divides by another number of elements."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.stem, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8 * 6 * 6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(functional.avg_pool2d(self.stem(x), 5, 2, ceil_mode=True).flatten(1))


MODELS = {kind.__name__: kind for kind in (BeforeActivation, RoundedUp)}


def images() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(1, 3, 16, 16, generator=generator) for _ in range(12)]
