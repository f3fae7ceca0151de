"""Models with recurrent layers, and models that PyTorch runs in ways that no compiler of ExecuTorch knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

STEPS, WIDTH = 4, 8


class Answer(NamedTuple):
    """A structure for which a program is exported without the strict mode."""

    y: torch.Tensor


class Recurrent(nn.Module):
    """A recurrent layer and a linear layer that reads its last step."""

    def __init__(self, layer: str, structured: bool, **arguments: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = getattr(nn, layer)(WIDTH, WIDTH, batch_first=True, **arguments)
        self.head = nn.Linear(2 * WIDTH if arguments.get("bidirectional") else WIDTH, 4)
        self.structured = structured

    def forward(self, x: torch.Tensor) -> Any:
        y = self.head(self.layer(x)[0][:, -1])
        return Answer(y) if self.structured else y


class Cell(nn.Module):
    """A cell that is called step by step, from a state of zeros."""

    def __init__(self, layer: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = getattr(nn, layer)(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state: Any = torch.zeros(1, WIDTH)
        if isinstance(self.layer, nn.LSTMCell):
            state = (state, state)
        for step in range(STEPS):
            state = self.layer(x[:, step], state)
        return self.head(state[0] if isinstance(state, tuple) else state)


class Tied(Recurrent):
    """A recurrent layer, a head that is called twice, and a sum with a buffer as its bias that is called twice."""

    def __init__(self) -> None:
        super().__init__("GRU", structured=False)
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(x)[0][:, -1]
        y = self.head(h) + self.head(h * 0.1)
        weight, bias = self.head.weight, self.get_buffer("offset")
        return y + nn.functional.linear(h, weight, bias) * nn.functional.linear(h * 0.5, weight, bias)


class Unbatched(nn.Sequential):
    """Convolutions that read a signal without a batch dimension; the last one's result is the output."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Conv1d(WIDTH, 6, 3), nn.ReLU(), nn.ConvTranspose1d(6, 4, 3))


def build(kind: str, layer: str = "", structured: bool = False, **arguments: Any) -> nn.Module:
    match kind:
        case "layer":
            return Recurrent(layer, structured, **arguments)
        case "cell":
            return Cell(layer)
        case "tied":
            return Tied()
        case _:
            return Unbatched()


def samples(count: int, batched: bool = True) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        shape = (1, STEPS, WIDTH) if batched else (WIDTH, 12)
        yield {"inputs": {"x" if batched else "input": torch.randn(shape, generator=generator)}}
