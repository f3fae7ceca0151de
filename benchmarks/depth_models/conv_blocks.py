"""A model of equal blocks, so that its error comes from one kind of layer only."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from qnnsweep.tasks.models.photographs import photographs
from qnnsweep.tasks.models.reproducible import reproducible

CHANNELS = 64
_PHOTOGRAPHS = 64
"""The number of photographs from which the batch norms take their statistics."""


def conv_blocks(blocks: int) -> nn.Module:
    """Return `blocks` times [3×3 convolution to 64 channels, batch norm, ReLU6], with equal first weights."""
    with reproducible(seed=0):
        layers: list[nn.Module] = []
        for block in range(blocks):
            convolution = nn.Conv2d(CHANNELS if block else 3, CHANNELS, 3, padding=1, bias=False)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            layers += [convolution, nn.BatchNorm2d(CHANNELS, momentum=None), nn.ReLU6()]
        model: Any = nn.Sequential(*layers)
        samples = photographs(_PHOTOGRAPHS, split="calibration", size=16, mean=[127.0] * 3, std=[64.0] * 3)
        with torch.no_grad():
            model.train()(torch.cat([sample["inputs"]["x"] for sample in samples]))
    model.weights_origin = "random"
    return model.eval()
