"""The samples that a data source returns: batches of size 1."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NotRequired, TypedDict, TypeVar

import torch

from qnnsweep.tasks.errors import RequestError

T = TypeVar("T")


class Sample(TypedDict):
    """The arguments of one call of the model.

    `inputs`: one tensor per input in the model's configuration, with the shape and dtype that are configured there.
    `label`: the true class index, for classifiers. `name`: the sample's name in tables and reports.
    """

    inputs: dict[str, torch.Tensor]
    label: NotRequired[int | None]
    name: NotRequired[str]


def take(samples: Iterator[T], count: int, source: str) -> list[T]:
    """Return the first `count` samples. Raises RequestError if the source has fewer samples or `count` is below 1."""
    if count < 1:
        raise RequestError(f"{source}: count must be at least 1, not {count}")
    first = list(islice(samples, count))
    if len(first) < count:
        raise RequestError(f"{source}: {len(first)} samples, but count is {count}: lower count")
    return first


def part(splits: Mapping[str, T], split: str) -> T:
    """Return the value of a split. For an unknown split, raises RequestError with the names of all splits."""
    if split not in splits:
        raise RequestError(f"split={split}: it must be one of {', '.join(splits)}")
    return splits[split]
