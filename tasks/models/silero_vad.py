"""Silero's detector of speech with the weights of the package silero-vad: a recurrent network for 16 kHz."""

import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import nn

from qnnsweep.tasks.models.optional import packaged_file
from qnnsweep.tasks.models.sample import part
from qnnsweep.tasks.models.speech import RATE, SPLITS

CHUNK, BEFORE, AFTER = 512, 64, 64
"""The new samples of a step, the samples before them, and the mirrored samples after them."""
PAUSE = RATE // 2
"""The samples of silence before every clip."""
BINS, WIDTH = 129, 128
"""The number of frequencies, and the size of the state."""
_FOR_16_KHZ = "_model."
_LAYERS = {
    **{f"encoder.{number}.reparam_conv": f"convs.{number}" for number in range(4)},
    "decoder.rnn": "lstm",
    "decoder.decoder.2": "result",
}
"""Our layers by their names in the package's model."""


class SileroVad(nn.Module):
    """A step reads 32 ms of sound and the state. It returns the probability of speech, and the next state."""

    def __init__(self) -> None:
        super().__init__()
        self.stft = nn.Conv1d(1, 2 * BINS, 256, stride=128, bias=False)
        sizes = ((BINS, 128, 1), (128, 64, 2), (64, 64, 2), (64, WIDTH, 1))
        self.convs = nn.ModuleList(nn.Conv1d(read, out, 3, stride, padding=1) for read, out, stride in sizes)
        self.lstm = nn.LSTMCell(WIDTH, WIDTH)
        self.result = nn.Conv1d(WIDTH, 1, 1)
        self.weights_origin = "random"

    def forward(self, samples: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor) -> dict[str, torch.Tensor]:
        real, imaginary = self.stft(samples.unsqueeze(1)).chunk(2, 1)
        x = torch.sqrt(real * real + imaginary * imaginary)
        for conv in self.convs:
            x = torch.relu(conv(x))
        hidden, cell = self.lstm(x.squeeze(2), (hidden, cell))
        speech = torch.sigmoid(self.result(torch.relu(hidden.unsqueeze(2)))).squeeze(2)
        return {"speech": speech, "hidden": hidden, "cell": cell}


def silero_vad() -> nn.Module:
    """Return the pretrained network in eval mode. Raises RequestError if its weights are not installed."""
    file = packaged_file("silero-vad", "silero_vad/data/silero_vad.jit", "silero_vad", "speech")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit
        scripted = torch.jit.load(str(file), map_location="cpu")
    # Not silero_vad_16k.safetensors: release 6.2.3 has the weights of another training in it.
    weights = scripted.state_dict().items()
    model = SileroVad()
    model.load_state_dict({_our_name(name): weight for name, weight in weights if name.startswith(_FOR_16_KHZ)})
    model.weights_origin = "pretrained"
    return model.eval().requires_grad_(False)


def _our_name(name: str) -> str:
    """Return our name of a weight of the package's model."""
    layer, _, kind = name.removeprefix(_FOR_16_KHZ).rpartition(".")
    return "stft.weight" if kind == "forward_basis_buffer" else f"{_LAYERS[layer]}.{kind}"


def sound(split: str, steps: int) -> torch.Tensor:
    """Return the clips of a split, again and again, with a pause before each, as float32 [steps * 512]."""
    pause = torch.zeros(PAUSE)
    once = torch.cat([torch.cat([pause, clip.samples()]) for clip in part(SPLITS, split)])
    return once.repeat(1 + steps * CHUNK // len(once))[: steps * CHUNK]


def frames(samples: torch.Tensor) -> torch.Tensor:
    """Return what the steps read, float32 [steps, 640]: each chunk with its margins, as the package computes them."""
    before = nn.functional.pad(samples, (BEFORE, 0)).unfold(0, BEFORE + CHUNK, CHUNK)
    return nn.functional.pad(before, (0, AFTER), mode="reflect")


def listening(count: int, *, split: str, steps: int) -> list[dict[str, Any]]:
    """Return the one sequence of a split (`calibration`, `evaluation`). Raises RequestError for another split."""
    return list(islice(_sequences(split, steps), count))


def _sequences(split: str, steps: int) -> Iterator[dict[str, Any]]:
    inputs = frames(sound(split, steps))
    yield {
        "name": f"{split} clips",
        "steps": [{"inputs": {"samples": inputs[step : step + 1]}} for step in range(steps)],
    }
