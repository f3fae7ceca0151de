"""A user's model that is exported and compiled in seconds: a convolution, a ReLU and a linear layer."""

from __future__ import annotations

from pathlib import Path

MODULE = """
import torch
from torch import nn


def small_net():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5))
    model.weights_origin = "random"
    return model.eval()


def noise(count, seed):
    generator = torch.Generator().manual_seed(seed)
    for index in range(count):
        yield {"inputs": {"image": 2 * torch.rand(1, 1, 4, 4, generator=generator) - 1}, "name": f"noise {index}"}
"""
CONFIGURATION = """
name: small_net
factory: small_net:small_net
inputs: [{name: image, shape: [1, 1, 4, 4]}]
calibration: {source: small_net:noise, arguments: {seed: 1}, count: 8}
evaluation: {source: small_net:noise, arguments: {seed: 2}, count: 2}
"""


def write_small_net(folder: Path) -> None:
    """Write the model into a folder for `--config-dir`."""
    (folder / "model").mkdir(parents=True)
    (folder / "small_net.py").write_text(MODULE)
    (folder / "model" / "small_net.yaml").write_text(CONFIGURATION)
