"""A small recurrent network that follows the phase of a noisy oscillation, step by step. It is trained at export."""

import math
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

import torch
from torch import nn

from qnnsweep.tasks.models.reproducible import reproducible
from qnnsweep.tasks.models.sample import part

SEED = 0
SAMPLES, WIDTH = 4, 16
TRAINING_STEPS, TRAINING_LENGTH, BATCH = 200, 40, 32
NOISE = 0.3
SPLITS = {"calibration": 1, "evaluation": 2}
"""Per split, the seed of its signals."""


class TinyGru(nn.Module):
    """A step reads four noisy samples and the state. It returns sine and cosine of the phase, and the next state."""

    def __init__(self) -> None:
        super().__init__()
        self.update = nn.Linear(SAMPLES + WIDTH, WIDTH)
        self.reset = nn.Linear(SAMPLES + WIDTH, WIDTH)
        self.candidate = nn.Linear(SAMPLES + WIDTH, WIDTH)
        self.result = nn.Linear(WIDTH, 2)
        self.weights_origin = "trained"

    def forward(self, samples: torch.Tensor, state: torch.Tensor) -> dict[str, torch.Tensor]:
        read = torch.cat([samples, state], 1)
        update, reset = torch.sigmoid(self.update(read)), torch.sigmoid(self.reset(read))
        candidate = torch.tanh(self.candidate(torch.cat([samples, reset * state], 1)))
        state = state + update * (candidate - state)
        return {"phase": self.result(state), "state": state}


def tiny_gru() -> nn.Module:
    """Return the trained network in eval mode."""
    model = TinyGru()
    model.load_state_dict(_trained())
    return model.eval().requires_grad_(False)


@cache
def _trained() -> dict[str, torch.Tensor]:
    """Train the network for some seconds, bit-reproducibly, and return its weights."""
    with reproducible(SEED):
        model, generator = TinyGru(), torch.Generator().manual_seed(SEED)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(TRAINING_STEPS):
            noisy, phase = signals(BATCH, TRAINING_LENGTH, generator)
            state, loss = torch.zeros(BATCH, WIDTH), torch.zeros(())
            for step in range(TRAINING_LENGTH):
                answer = model(noisy[:, step], state)
                state = answer["state"]
                loss = loss + nn.functional.mse_loss(answer["phase"], phase[:, step])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.state_dict()


def signals(count: int, steps: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noisy signals, [count, steps, samples], and sine and cosine at the end of each step, [count, steps, 2]."""
    time = torch.arange(steps * SAMPLES)
    rate, start = (torch.rand(count, 1, generator=generator) for _ in range(2))
    angle = 2 * math.pi * (start + (0.01 + 0.03 * rate) * time)
    noisy = angle.sin() + NOISE * torch.randn(angle.shape, generator=generator)
    last = angle.view(count, steps, SAMPLES)[:, :, -1]
    return noisy.view(count, steps, SAMPLES), torch.stack([last.sin(), last.cos()], 2)


def oscillations(count: int, *, split: str, steps: int) -> list[dict[str, Any]]:
    """Return sequences of a split (`calibration`, `evaluation`). Raises RequestError if there is no such split."""
    return list(islice(_sequences(part(SPLITS, split), steps), count))


def _sequences(seed: int, steps: int) -> Iterator[dict[str, Any]]:
    generator, number = torch.Generator().manual_seed(seed), 0
    while True:
        noisy, _ = signals(1, steps, generator)
        yield {"name": f"signal {number}", "steps": [{"inputs": {"samples": noisy[:, step]}} for step in range(steps)]}
        number += 1
