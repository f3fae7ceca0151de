"""Models whose arguments and answers are any structure that PyTorch's pytrees know, or a dataclass."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch


class Pair(NamedTuple):
    logits: torch.Tensor
    features: torch.Tensor | None = None


@dataclass
class Scores:
    logits: torch.Tensor
    parts: dict[str, Any]
    count: int = 3


@dataclass(frozen=True, slots=True)
class Frozen:
    pixels: torch.Tensor
    sizes: tuple[int, int]


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        self.head = torch.nn.Linear(8, 4)


class Net(Layers):
    def forward(self, x: torch.Tensor) -> Any:
        h = self.body(x)
        return self.answer(self.head(h), h)

    def answer(self, z: torch.Tensor, h: torch.Tensor) -> Any:
        return z


class ReturnsANamedTuple(Net):
    def answer(self, z: torch.Tensor, h: torch.Tensor) -> Any:
        return Pair(z, h)


class ReturnsADataclass(Net):
    def answer(self, z: torch.Tensor, h: torch.Tensor) -> Any:
        return Scores(z, {"hidden": [h, h + 1]})


class ReturnsADictWithNone(Net):
    def answer(self, z: torch.Tensor, h: torch.Tensor) -> Any:
        return OrderedDict(logits=z, aux={"features": h, "none": None}, loss=None)


class ReturnsANumber(Net):
    def answer(self, z: torch.Tensor, h: torch.Tensor) -> Any:
        return z, 3, 0.5


class ReturnsALocalClass(Net):
    def answer(self, z: torch.Tensor, h: torch.Tensor) -> Any:
        @dataclass
        class Local:
            logits: torch.Tensor

        return [Local(z), Pair(h)]


class TakesADict(Layers):
    def forward(self, batch: dict[str, Any], scale: float = 1.0, *, flags: list[Any] | None = None) -> Any:
        flag = flags[0] if flags else True
        return self.head(self.body(batch["x"])) * scale + (batch["shift"][0] if flag else batch["shift"][1])


class TakesClasses(Layers):
    def forward(self, frozen: Frozen, pair: Pair, mode: str = "sum") -> Any:
        h = self.body(frozen.pixels.reshape(frozen.sizes)) + pair.logits
        assert pair.features is None
        return h.sum(-1) if mode == "sum" else h.mean(-1)


class TakesAnything(Layers):
    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        return (
            self.head(self.body(args[0] if args else kwargs["x"]))
            + sum(args[1:])
            + sum(v.mean() for v in kwargs.values())
        )


def build(kind: str) -> torch.nn.Module:
    return globals()[kind]()


def samples(count: int, form: str = "x", seed: int = 0, change: str = "") -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    for number in range(count):
        x, y = (torch.rand(2, 8, generator=generator) for _ in range(2))
        changed = change if number == 1 else ""
        shift = [y[:, :4], y[:, 4:]] if changed != "shift" else [y[:, :4]]
        yield {
            "inputs": {
                "x": lambda x=x: {"x": x},
                "tensor": lambda x=x: x,
                "array": lambda x=x: x.numpy(),
                "tuple": lambda x=x: (x,),
                "named array": lambda x=x: {"x": x.numpy()},
                "dict": lambda x=x, shift=shift, changed=changed: {
                    "flags": [False, None],
                    "scale": np.float64(3.0 if changed == "scale" else 2.0),
                    "batch": {"shift": shift, "x": x if changed != "dtype" else x.double()},
                },
                "classes": lambda x=x, y=y: (Frozen(x.reshape(4, 4), (2, 8)), Pair(y), "mean"),
                "mode": lambda x=x, y=y: {"pair": Pair(y), "frozen": Frozen(x.reshape(4, 4), (2, 8))},
                "many": lambda x=x, y=y: [x, y[:, :4], y[:, 4:]],
                "keywords": lambda x=x, y=y: {"x": x, "bias": y},
                "misspelt": lambda x=x: {"X": x},
                "nothing": lambda: {"x": 3},
                "too many": lambda x=x, y=y: (x, y),
            }[form](),
            "label": number,
        }
