"""The samples that a data source returns: batches of size 1."""

from collections.abc import Mapping
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


def part(splits: Mapping[str, T], split: str) -> T:
    """Return the value of a split. For an unknown split, raises RequestError with the names of all splits."""
    if split not in splits:
        raise RequestError(f"split={split}: it must be one of {', '.join(splits)}")
    return splits[split]
