"""Models with weights of 16 and of 64 bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

DTYPES = {"half": torch.float16, "bf16": torch.bfloat16, "double": torch.float64, "float": torch.float32}


@dataclass
class Out:
    logits: torch.Tensor


class Net(torch.nn.Module):
    weights_origin = "random"

    def __init__(self, cast: str, answer: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cast, self.answer = cast, answer
        self.body, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> Any:
        match self.cast:
            case "half":
                x = x.half()
            case "bf16":
                x = x.bfloat16()
            case "double":
                x = (x.double() * 2.5).to(self.head.weight.dtype)
            case "numpy's default":
                x = x * torch.linspace(0, 1, 8, dtype=torch.float64)
                x = x.to(self.head.weight.dtype)
            case "to":
                x = x.to(torch.bfloat16)
            case "to dtype":
                x = x.to(dtype=self.head.weight.dtype)
            case "zeros":
                x = x + torch.zeros(8, dtype=torch.float16)
        y = self.head(self.body(x).relu())
        return Out(y) if self.answer == "dataclass" else y

    def other(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x).relu()


def build(dtype: str = "half", cast: str = "", answer: str = "") -> torch.nn.Module:
    return Net(cast, answer).to(DTYPES[dtype])


def samples(count: int, dtype: str = "float32") -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield {"inputs": {"x": torch.rand(2, 8, generator=generator).to(getattr(torch, dtype))}}
