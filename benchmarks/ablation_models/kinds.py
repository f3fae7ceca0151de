"""Small networks of many kinds, and structured samples for them, for benchmarks/ablation.py."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.functional import avg_pool2d, interpolate, normalize, scaled_dot_product_attention


class Squeeze(nn.Module):
    """An inverted residual block with a depthwise convolution and squeeze-and-excite."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(8, 24, 1, bias=False), nn.BatchNorm2d(24), nn.Hardswish())
        self.depthwise = nn.Sequential(nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.BatchNorm2d(24), nn.Hardswish())
        self.excite = nn.Sequential(nn.Conv2d(24, 6, 1), nn.ReLU(), nn.Conv2d(6, 24, 1), nn.Hardsigmoid())
        self.project = nn.Conv2d(24, 8, 1)
        self.head = nn.Linear(8, 5)
        with torch.no_grad():
            self.depthwise[0].weight *= torch.logspace(-1.5, 1, 24)[:, None, None, None]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.depthwise(self.expand(x))
        y = y * self.excite(y.mean((2, 3), keepdim=True))
        return self.head((x + self.project(y)).mean((2, 3)))


class Unet(nn.Module):
    """Two levels of a U-Net: maximum pooling, a transposed convolution, and a concatenation with the shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.bottom = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.mask = nn.Sequential(nn.Conv2d(16, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = self.down(x)
        return self.mask(torch.cat([shortcut, self.up(self.bottom(shortcut))], 1))


class Encoder(nn.Module):
    """A layer of a transformer's encoder: attention with four heads, layer norms, GELU, and logits."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.first(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(batch, tokens, width)
        x = x + self.joined(attended)
        x = x + self.narrow(nn.functional.gelu(self.wide(self.second(x))))
        return self.head(x.mean(1)).softmax(-1)


class Audio(nn.Module):
    """Strided convolutions over a waveform, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, 12, 9, 4, 4),
            nn.BatchNorm1d(12),
            nn.ReLU(),
            nn.Conv1d(12, 24, 5, 2, 2, groups=4),
            nn.LeakyReLU(0.1),
            nn.Conv1d(24, 24, 5, 2, 2),
            nn.ELU(),
        )
        self.head = nn.Linear(24, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x).amax(2))


class Gated(nn.Module):
    """Gated linear units in series: halves of a layer, of which one passes a sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(20, 64), nn.Linear(32, 64), nn.Linear(32, 64)])
        self.head = nn.Linear(32, 7)
        with torch.no_grad():
            for layer in self.layers:
                layer.weight *= 4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = nn.functional.glu(layer(x))
        return self.head(x)


class Detector(nn.Module):
    """Boxes, objectness and classes at two strides, with the boxes decoded to pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1), nn.SiLU(), nn.Conv2d(12, 16, 3, 2, 1), nn.SiLU())
        self.deeper = nn.Sequential(nn.Conv2d(16, 16, 3, 2, 1), nn.SiLU())
        self.fine, self.coarse = nn.Conv2d(16, 9, 1), nn.Conv2d(16, 9, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        fine = self.stem(x)
        levels = [(self.fine(fine), 4), (self.coarse(self.deeper(fine)), 8)]
        boxes = torch.cat([(stride * y[:, :4].exp()).flatten(2) for y, stride in levels], 2)
        objects = torch.cat([y[:, 4:5].sigmoid().flatten(2) for y, _ in levels], 2)
        return boxes, objects, torch.cat([y[:, 5:].flatten(2) for y, _ in levels], 2)


class Spike(nn.Module):
    """Residual blocks in whose stream one channel is two hundred times larger than the others."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        blocks = [nn.Conv2d(12, 12, 3, padding=1) for _ in range(3)]
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(12, 6)
        with torch.no_grad():
            self.stem.weight[5] *= 200
            for block in blocks:
                block.weight[:, 5] /= 200
            self.head.weight[:, 5] /= 200

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.head(x.mean((2, 3)))


class Ranges(nn.Module):
    """A perceptron of flattened images, with rows and columns of the weights that differ by three decades."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(48, 40), nn.Linear(40, 24), nn.Linear(24, 4)
        scales = torch.logspace(-1.5, 1.5, 40)
        with torch.no_grad():
            self.first.weight *= scales[:, None]
            self.first.bias *= scales
            self.second.weight /= scales

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(torch.tanh(self.second(torch.relu(self.first(x.flatten(1))))))


class Grouped(nn.Module):
    """Group norms between convolutions, with channels whose norms have other gains."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)])
        self.norms = nn.ModuleList([nn.GroupNorm(4, 16), nn.GroupNorm(4, 16)])
        self.head = nn.Conv2d(16, 3, 1)
        with torch.no_grad():
            self.norms[0].weight *= torch.linspace(0.1, 4, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = torch.relu(norm(convolution(x)))
        return self.head(x)


class Pyramid(nn.Module):
    """Average pooling at four sizes, a convolution for each, and the enlarged results side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.levels = nn.ModuleList([nn.Conv2d(8, 4, 1) for _ in range(4)])
        self.head = nn.Conv2d(24, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.relu6(4 * self.stem(x))
        pooled = [
            interpolate(level(avg_pool2d(x, size)), scale_factor=float(size), mode="nearest")
            for level, size in zip(self.levels, (2, 4, 8, 16), strict=True)
        ]
        return self.head(torch.cat([x, *pooled], 1))


class Recurrent(nn.Module):
    """A GRU over twelve steps, and a classifier of its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.gru(x)
        return self.head(states[:, -1])


class Retrieval(nn.Module):
    """Cosine similarities between an encoded input and a table of unit vectors, divided by a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 16))
        self.register_buffer("table", normalize(torch.randn(10, 16), dim=-1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return normalize(self.encoder(x), dim=-1) @ self.table.T / 0.07


KINDS = (Squeeze, Unet, Encoder, Audio, Gated, Detector, Spike, Ranges, Grouped, Pyramid, Recurrent, Retrieval)


def network(name: str) -> nn.Module:
    """Return a network by the name of its class in small letters, with random weights."""
    torch.manual_seed(0)
    model = {kind.__name__.lower(): kind for kind in KINDS}[name]()
    model.weights_origin = "random"
    return model.eval()


def images(count: int, seed: int, shape: list[int]) -> Iterator[dict[str, Any]]:
    """Yield smooth images with a little noise."""
    generator = torch.Generator().manual_seed(seed)
    batch, channels, height, width = shape
    for number in range(count):
        small = torch.randn(batch, channels, height // 4, width // 4, generator=generator)
        smooth = interpolate(small, size=(height, width), mode="bilinear")
        yield {"inputs": {"x": smooth + 0.1 * torch.randn(*shape, generator=generator)}, "name": f"image {number}"}


def waves(count: int, seed: int, shape: list[int]) -> Iterator[dict[str, Any]]:
    """Yield sums of three tones with a little noise, each sample with its own loudness."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.linspace(0, 1, shape[-1])
    for number in range(count):
        tones = 5 + 40 * torch.rand(3, 1, generator=generator)
        wave = torch.sin(2 * math.pi * tones * time).sum(0) * (0.1 + torch.rand(1, generator=generator))
        yield {"inputs": {"x": wave + 0.02 * torch.randn(*shape, generator=generator)}, "name": f"wave {number}"}
