"""The samples that a caller of `qnnsweep.debug` gives, in any of the forms in which PyTorch users hold them."""

import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate

from qnnsweep.tasks.errors import RequestError

Sample = Mapping[str, Any]
"""A sample as the data sources of models yield it; see docs/models.md."""
FEW_CALIBRATION, MOST_CALIBRATION, MOST_UNSEEN = 16, 128, 64
"""So many samples calibrate before any is left unseen; and the largest numbers of both."""
_LABELS = ("label", "labels")
"""The keys of a mapping that are a label, unless `forward` has a parameter of this name."""


def given_samples(samples: object, module: torch.nn.Module, most: int, key: str) -> list[Sample]:
    """Return the first `most` samples.

    samples: one sample, or a list, a generator, a Dataset or a DataLoader of samples. A sample is a tensor, a tuple of
        the arguments of `forward`, or a mapping from their names. An item of a Dataset gets a first dimension of
        length 1. If `forward` needs one argument less than an item has, and the last is an integer, it is the label.
    key: the name of the argument in the caller's code, for errors.

    Raises RequestError if there is no sample.
    """
    parameters = inspect.signature(module.forward).parameters
    given = [_sample(item, parameters) for item in _items(samples, most, key)]
    if not given:
        raise RequestError("there is no sample", key=key)
    return given


@dataclass(frozen=True, kw_only=True, slots=True)
class Divided:
    """Samples by their use. `unseen`: for the certificate of a repair, which neither the others have."""

    evaluation: Sequence[Sample]
    calibration: Sequence[Sample]
    unseen: Sequence[Sample] = ()


def divided(samples: Sequence[Sample], most: int) -> Divided:
    """Divide samples. If they are few, all of them are compared and calibrate.

    most: the number of evaluation samples. They are spread over all samples, because data are often sorted by class.
    """
    if len(samples) <= most:
        return Divided(evaluation=samples, calibration=samples)
    chosen = {round(number * (len(samples) - 1) / max(1, most - 1)) for number in range(most)}
    others = [sample for number, sample in enumerate(samples) if number not in chosen]
    calibrating = min(len(others), max(FEW_CALIBRATION, len(others) // 2), MOST_CALIBRATION)
    return Divided(
        evaluation=[sample for number, sample in enumerate(samples) if number in chosen],
        calibration=others[:calibrating],
        unseen=others[calibrating : calibrating + MOST_UNSEEN],
    )


def _items(samples: object, most: int, key: str) -> Iterator[Any]:
    """Yield the first items, each as the arguments of one call."""
    if isinstance(samples, torch.Tensor | np.ndarray | tuple | Mapping):
        yield samples
    elif isinstance(samples, IterableDataset):
        yield from (default_collate([item]) for item in itertools.islice(samples, most))
    elif isinstance(samples, Dataset):
        length = len(samples) if hasattr(samples, "__len__") else most  # pyright: ignore[reportArgumentType]
        yield from (default_collate([samples[number]]) for number in range(min(most, length)))
    elif isinstance(samples, Iterable) and not isinstance(samples, str | bytes):
        yield from itertools.islice(samples, most)
    else:
        raise RequestError(
            f"`{type(samples).__name__}` is no sample; give a tensor, a tuple of the arguments of forward, a dict of "
            "them, or a list, a Dataset or a DataLoader of these",
            key=key,
        )


def _sample(item: object, parameters: Mapping[str, inspect.Parameter]) -> Sample:
    """Return an item as a sample, with its label if it has one."""
    if isinstance(item, Mapping):
        labels = [name for name in _LABELS if name in item and name not in parameters]
        inputs = {str(name): value for name, value in item.items() if name not in labels}
        return _labelled(inputs, item[labels[0]] if labels else None)
    if isinstance(item, tuple | list) and not hasattr(item, "_fields") and len(item) > 1:
        *inputs, last = item
        if _is_label(last) and len(inputs) >= _needed(parameters):
            return _labelled(inputs[0] if len(inputs) == 1 else tuple(inputs), last)
    return {"inputs": item}


def _labelled(inputs: object, label: Any) -> Sample:
    """Return a sample with its label. A batch of several rows has none."""
    numbers = torch.as_tensor(label).flatten() if label is not None else torch.empty(0)
    return {"inputs": inputs, "label": int(numbers[0]) if numbers.numel() == 1 else None}


def _needed(parameters: Mapping[str, inspect.Parameter]) -> int:
    """Return how many positional arguments `forward` needs."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters.values() if each.kind in positional and each.default is each.empty]
    return max(1, len(needed))


def _is_label(value: object) -> bool:
    """Return whether a value can be a label: an integer, or integers of one per row of a batch."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.ndim <= 1 and not torch.as_tensor(value).is_floating_point()
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
