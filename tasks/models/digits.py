"""A small CNN trained on scikit-learn's handwritten digits: a real, labelled model that needs no download."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from qnnsweep.tasks.models.reproducible import reproducible
from qnnsweep.tasks.models.sample import Sample, part

SEED = 0
EPOCHS = 15
BATCH = 64
LEARNING_RATE = 3e-3
INDICES = torch.arange(1797)
SPLITS = {"training": INDICES[INDICES % 4 != 0], "held_out": INDICES[INDICES % 4 == 0]}
"""Per split, the indices of its digits. Every fourth digit is held out, which keeps the classes balanced."""


class DigitsCnn(nn.Module):
    """A CNN from float32 [N, 1, 8, 8] in 0..1 to float32 [N, 10] logits, with about 10,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            # Not F.max_pool2d(x, 2): without an explicit stride ExecuTorch's QNN builder raises an IndexError.
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(32 * 4 * 4, 10)
        self.weights_origin = "trained"

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(image).flatten(1))


def digits_cnn() -> nn.Module:
    """Train the CNN on the training split in about a second, bit-reproducibly, and return it in eval mode."""
    (images, labels), training = _data(), SPLITS["training"]
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
    """Return the first `count` digits of a split (`training`, `held_out`).

    A sample has the input `image`, float32 [1, 1, 8, 8], and a label from 0 to 9. Raises RequestError if there is no
    such split.
    """
    return list(islice(_samples(part(SPLITS, split)), count))


def _samples(indices: torch.Tensor) -> Iterator[Sample]:
    images, labels = _data()
    for index in indices.tolist():
        yield {"inputs": {"image": images[index : index + 1]}, "label": int(labels[index]), "name": f"digit {index}"}


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the images, float32 [1797, 1, 8, 8], scaled from 0..16 to 0..1, and their labels, int64 [1797]."""
    pixels, labels = load_digits(return_X_y=True)
    images = np.asarray(pixels, dtype=np.float32).reshape(-1, 1, 8, 8) / 16
    return torch.from_numpy(images), torch.from_numpy(np.asarray(labels, dtype=np.int64))
