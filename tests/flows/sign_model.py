"""A user's model whose 8-bit convolution has a saturated bias, of which the HTP turns the sign."""

from __future__ import annotations

from pathlib import Path

MODULE = """
import torch
from torch import nn


class SignNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.tail = nn.Conv2d(8, 4, 1)

    def forward(self, image):
        limited = nn.functional.relu6(self.conv(image))
        return self.tail(limited)


def sign_net():
    torch.manual_seed(0)
    model = SignNet()
    with torch.no_grad():
        model.conv.weight[3] = model.conv.weight[3].abs() * 3e-5
        model.conv.bias[3] = -0.97
    model.weights_origin = "random"
    return model.eval()


def noise(count, seed):
    generator = torch.Generator().manual_seed(seed)
    for index in range(count):
        yield {"inputs": {"image": 2 * torch.rand(1, 3, 8, 8, generator=generator) - 1}, "name": f"noise {index}"}
"""
CONFIGURATION = """
name: sign_net
factory: sign_net:sign_net
inputs: [{name: image, shape: [1, 3, 8, 8]}]
calibration: {source: sign_net:noise, arguments: {seed: 1}, count: 8}
evaluation: {source: sign_net:noise, arguments: {seed: 2}, count: 1}
"""


def write_sign_model(folder: Path) -> None:
    """Write the model into a folder for `--config-dir`."""
    (folder / "model").mkdir(parents=True)
    (folder / "sign_net.py").write_text(MODULE)
    (folder / "model" / "sign_net.yaml").write_text(CONFIGURATION)
