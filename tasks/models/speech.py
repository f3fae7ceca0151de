"""Spoken sentences: 16 kHz mono clips that are part of the project.

`espeak-ng -v en-us -s 150 -w <name>.wav "<sentence>"` of Debian 12 (version 1.51) spoke each sentence at 22,050 Hz, and
`scipy.signal.resample_poly(samples, 320, 441)` brought it to 16 kHz.
"""

import wave
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import torch

RATE = 16_000
"""Samples per second."""


@dataclass(frozen=True, slots=True)
class Clip:
    name: str
    sentence: str

    def samples(self) -> torch.Tensor:
        """Return the samples, float32 [time], from -1 to 1."""
        with (
            files("qnnsweep.tasks.models").joinpath("clips", f"{self.name}.wav").open("rb") as file,
            wave.open(file) as clip,
        ):
            frames = np.frombuffer(clip.readframes(clip.getnframes()), "<i2")
        return torch.from_numpy(frames.astype(np.float32) / 32768)


SPLITS = {
    "calibration": (
        Clip("river", "We walked along the river until it was dark."),
        Clip("weather", "Thank you for calling the Weather Service."),
    ),
    "evaluation": (
        Clip("harbor", "The train to the harbor leaves at seven."),
        Clip("garden", "My sister planted two apple trees in the garden."),
    ),
}
"""Per split, its clips. The sentences are spelled as Whisper spells them."""
