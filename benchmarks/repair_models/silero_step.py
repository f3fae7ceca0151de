"""One step of silero-vad, with the states that the network has along recorded speech."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import nn

from qnnsweep.tasks.models.silero_vad import WIDTH, frames, silero_vad, sound

BETWEEN = 7
"""Of so many steps, one is a sample."""


def network() -> nn.Module:
    """Return the pretrained network. Raises RequestError if its weights are not installed."""
    return silero_vad()


def steps(count: int, *, split: str) -> Iterator[dict[str, Any]]:
    """Yield `count` steps of the clips of a split (`calibration`, `evaluation`)."""
    model, state = silero_vad(), {"hidden": torch.zeros(1, WIDTH), "cell": torch.zeros(1, WIDTH)}
    with torch.no_grad():
        inputs: list[dict[str, torch.Tensor]] = []
        for frame in frames(sound(split, BETWEEN * count)).split(1):
            inputs.append({"samples": frame, **state})
            result = model(**inputs[-1])
            state = {name: result[name] for name in state}
    yield from ({"inputs": one} for one in islice(inputs, BETWEEN - 1, None, BETWEEN))
