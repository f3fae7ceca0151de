"""The samples that a data source returns: batches of size 1."""

from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import NotRequired, TypedDict, TypeVar

import torch

from tasks.errors import RequestError

T = TypeVar("T")
Choice = TypeVar("Choice", bound=Enum)


class Sample(TypedDict):
    """The arguments of one call of the model.

    `inputs`: a tensor per input in the model's configuration, of that shape and dtype.
    `label`: the true class index, for classifiers. `name`: the sample's name in tables and reports.
    """

    inputs: dict[str, torch.Tensor]
    label: NotRequired[int | None]
    name: NotRequired[str]


def take(samples: Iterator[T], count: int, source: str) -> list[T]:
    """Return the first `count` samples. Raises RequestError if the source has fewer or `count` is below 1."""
    if count < 1:
        raise RequestError(f"{source}: count must be at least 1, not {count}")
    first = list(islice(samples, count))
    if len(first) < count:
        raise RequestError(f"{source}: {len(first)} samples, but count is {count}: lower count")
    return first


def member(choices: type[Choice], name: str) -> Choice:
    """Return the member of that name. Raises RequestError, with all names, for an unknown one."""
    if name not in choices.__members__:
        raise RequestError(f"split={name}: it must be one of {', '.join(choices.__members__)}")
    return choices[name]
