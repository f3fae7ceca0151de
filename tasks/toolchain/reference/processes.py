"""Independent computations in several processes, for code that holds the interpreter's lock too often for threads."""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_MOST_PROCESSES = 4  # the temporary tensors of so many computations exist at once


def in_processes(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return the results of a function for all items, in their order. Raises the first error.

    Forks of this process compute a part of the items and pickle the results. What else the function changes in a fork
    is lost. If a fork fails, for example because memory is short, this process computes its items.

    PyTorch uses one thread per process: therefore results do not depend on the number of cores.
    """
    import torch  # here, because the process that only plans the stages never loads PyTorch

    items = list(items)
    count = max(1, min(len(os.sched_getaffinity(0)), _MOST_PROCESSES, len(items)))
    first, *others = (items[start::count] for start in range(count))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        forks = [_Fork(function, part) for part in others]
        parts = [[function(item) for item in first], *(fork.results() for fork in forks)]
    finally:
        torch.set_num_threads(threads)
    return [parts[index % count][index // count] for index in range(len(items))]


class _Fork:
    """A fork of this process that computes some items."""

    def __init__(self, function: Callable[[Any], Any], items: Sequence[Any]) -> None:
        self._function, self._items = function, items
        self._received, sent = Pipe(duplex=False)
        self._pid = os.fork()
        if self._pid == 0:
            self._compute(sent)
        sent.close()

    def _compute(self, sent: Connection) -> None:
        """Send the results, or nothing after an error, and exit."""
        try:
            with suppress(Exception):
                sent.send([self._function(item) for item in self._items])
        finally:
            os._exit(0)

    def results(self) -> list[Any]:
        """Return the results of the items, from the fork or else computed here."""
        with self._received, suppress(EOFError, OSError):
            results: list[Any] = self._received.recv()
            os.waitpid(self._pid, 0)
            return results
        os.waitpid(self._pid, 0)
        return [self._function(item) for item in self._items]
