"""The type of functions that compute independent results, one after the other or at the same time."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Map(Protocol):
    """Calls a function with every item, like `map`, and returns the results in the same order."""

    def __call__(self, function: Callable[[T], R], items: Sequence[T], /) -> Iterable[R]: ...
