"""Small models with states and random weights, and their sequences: a llama, a recurrent layer, and a Whisper."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from qnnsweep.tasks.models.llama import Llama, LlamaSizes, causal_mask
from qnnsweep.tasks.models.whisper import Whisper, WhisperSizes

CONTEXT, PREFILL = 6, 3
SIZES = LlamaSizes(vocabulary=11, width=16, layers=1, heads=2, kv_heads=1, hidden=16)


def micro_llama(tokens: int) -> Llama:
    torch.manual_seed(0)
    return Llama(SIZES, CONTEXT, tokens).eval().requires_grad_(False)


def sequences(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield prompts of two tokens. The third token of the prefill is padding."""
    generator = torch.Generator().manual_seed(seed)
    for number in range(count):
        prompt = torch.randint(11, (1, PREFILL), generator=generator, dtype=torch.int32)
        steps: list[dict[str, Any]] = [
            {"method": "prefill", "inputs": {"tokens": prompt, **where(PREFILL, 0)}, "keep": 2, "label": number}
        ]
        steps += [{"method": "decode", "inputs": where(1, start)} for start in (2, 3)]
        yield {"name": f"prompt {number}", "steps": steps}


def where(tokens: int, start: int) -> dict[str, torch.Tensor]:
    position = torch.arange(start, start + tokens, dtype=torch.int32)[None]
    return {"mask": causal_mask(tokens, CONTEXT, start), "position": position}


class Leaky(torch.nn.Module):
    """A recurrent layer: the state is a leaky sum of what it has read."""

    weights_origin = "random"

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.read = torch.nn.Linear(4, 8)
        self.keep = torch.nn.Linear(8, 8)
        self.result = torch.nn.Linear(8, 2)

    def forward(self, sample: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = torch.tanh(self.read(sample) + self.keep(state))
        return self.result(state), state


def signals(count: int, steps: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield {"steps": [{"inputs": {"sample": torch.randn(1, 4, generator=generator)}} for _ in range(steps)]}


WHISPER = WhisperSizes(vocabulary=11, width=16, layers=1, heads=2, hidden=16, mels=4, frames=6, context=5)


def micro_whisper() -> Whisper:
    torch.manual_seed(0)
    return Whisper(WHISPER).eval().requires_grad_(False)


def recordings(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield an encoding and three decode steps. Only the first of them states its token."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        mel = torch.randn(1, WHISPER.mels, 2 * WHISPER.frames, generator=generator)
        steps: list[dict[str, Any]] = [{"method": "encode", "inputs": {"mel": mel}}]
        for start in range(3):
            position = torch.tensor([[start]], dtype=torch.int32)
            steps.append(
                {"method": "decode", "inputs": {"mask": causal_mask(1, WHISPER.context, start), "position": position}}
            )
        steps[1]["inputs"]["tokens"] = torch.tensor([[1]], dtype=torch.int32)
        yield {"steps": steps}
