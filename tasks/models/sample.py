"""What a data source yields: one sample, a batch of one."""

from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import NotRequired, TypedDict, TypeVar

import torch

from tasks.errors import RequestError

T = TypeVar("T")
Choice = TypeVar("Choice", bound=Enum)


class Sample(TypedDict):
    """One call of the model.

    `inputs` has a tensor for every input that the model's configuration names, of that shape and dtype.
    `label` is the true class index, for classifiers; `name` is what tables and reports call the sample.
    """

    inputs: dict[str, torch.Tensor]
    label: NotRequired[int | None]
    name: NotRequired[str]


def take(samples: Iterator[T], count: int, source: str) -> list[T]:
    """Exactly the first `count` of `samples`; RequestError when the source has fewer or `count` is below 1."""
    if count < 1:
        raise RequestError(f"{source}: count must be at least 1, not {count}")
    taken = list(islice(samples, count))
    if len(taken) < count:
        raise RequestError(f"{source}: {len(taken)} samples, {count} were asked for: lower count")
    return taken


def named(choices: type[Choice], name: str) -> Choice:
    """The member of that name; RequestError, listing them, when there is none."""
    if name not in choices.__members__:
        raise RequestError(f"split={name}: one of {', '.join(choices.__members__)}")
    return choices[name]
