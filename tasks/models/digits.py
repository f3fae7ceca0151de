"""A small CNN trained on scikit-learn's handwritten digits: a real, labelled model that needs no download."""

from collections.abc import Iterator
from enum import Enum

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from tasks.models.reproducible import reproducible
from tasks.models.sample import Sample, named, take

SEED = 0
EPOCHS = 15
BATCH = 64
LEARNING_RATE = 3e-3


class Split(Enum):
    """A part of the 1797 digits. Every fourth is held out: the classes stay balanced, and no generator is needed."""

    training = "training"
    held_out = "held_out"

    def of(self, total: int) -> torch.Tensor:
        """This split's part of 0 … total - 1, int64, rising; the two splits share none and together are all."""
        index = torch.arange(total)
        return index[(index % 4 == 0) == (self is Split.held_out)]


class DigitsCnn(nn.Module):
    """float32 [N, 1, 8, 8] in 0..1 to float32 [N, 10] logits; about 10,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            # The module, not F.max_pool2d(x, 2): without an explicit stride ExecuTorch's QNN builder has an IndexError.
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(32 * 4 * 4, 10)
        self.weights_origin = "trained"

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(image).flatten(1))


def digits_cnn() -> nn.Module:
    """The CNN in eval mode, trained here and now on the training split: about a second, the same bits every time."""
    images, labels = _data()
    training = Split.training.of(len(labels))
    with reproducible(SEED):
        model = DigitsCnn()
        optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
        for _ in range(EPOCHS):
            for batch in training[torch.randperm(len(training))].split(BATCH):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
                optimizer.step()
    return model.eval().requires_grad_(False)


def digits(count: int, *, split: str) -> list[Sample]:
    """The first `count` digits of a split (`training`, `held_out`): `image` float32 [1, 1, 8, 8], label 0-9.

    Raises RequestError when the split has fewer, and for another split.
    """
    return take(_samples(named(Split, split)), count, f"the {split} split of the digits")


def _samples(split: Split) -> Iterator[Sample]:
    images, labels = _data()
    for index in split.of(len(labels)).tolist():
        yield {"inputs": {"image": images[index : index + 1]}, "label": int(labels[index]), "name": f"digit {index}"}


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    """Images float32 [1797, 1, 8, 8] in 0..1 (the data set counts ink from 0 to 16) and labels int64 [1797]."""
    pixels, labels = load_digits(return_X_y=True)
    images = np.asarray(pixels, dtype=np.float32).reshape(-1, 1, 8, 8) / 16
    return torch.from_numpy(images), torch.from_numpy(np.asarray(labels, dtype=np.int64))
