"""Independent computations in several processes, for code that holds the interpreter's lock too often for threads."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_MOST_PROCESSES = 4  # the temporary tensors of so many computations exist at once
_POSITION_BYTES = 4  # of an item, in the queue
_MOST_ITEMS = 2**14  # their positions fit into a pipe


def in_processes(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return the results of a function for all items, in their order. Raises the first error.

    Forks of this process compute a part of the items and pickle the results. What else the function changes in a fork
    is lost. If a fork fails, for example because memory is short, this process computes its items.

    PyTorch uses one thread per process: therefore results do not depend on the number of cores.
    """
    import torch  # here, because the process that only plans the stages never loads PyTorch

    items = list(items)
    results: dict[int, R] = {}
    count = min(len(os.sched_getaffinity(0)), _MOST_PROCESSES, len(items))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _queue(range(min(len(items), _MOST_ITEMS))) as queue:
            forks = [_Fork(function, items, queue) for _ in range(count - 1)]
            results |= _compute(function, items, queue)
            for fork in forks:
                results |= fork.results()
        return [results[position] if position in results else function(item) for position, item in enumerate(items)]
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _queue(positions: range) -> Iterator[int]:
    """Return a pipe from which several processes can read the positions of items, each position once."""
    queue, writing = os.pipe()
    try:
        with open(writing, "wb") as file:  # noqa: PTH123 - a descriptor
            for position in positions:
                file.write(position.to_bytes(_POSITION_BYTES, "little"))
        yield queue
    finally:
        os.close(queue)


def _compute(function: Callable[[T], R], items: Sequence[T], queue: int) -> dict[int, R]:
    results: dict[int, R] = {}
    while read := os.read(queue, _POSITION_BYTES):
        position = int.from_bytes(read, "little")
        results[position] = function(items[position])
    return results


class _Fork:
    """A fork of this process that computes items of a queue."""

    def __init__(self, function: Callable[[Any], Any], items: Sequence[Any], queue: int) -> None:
        self._received, sent = Pipe(duplex=False)
        self._pid = os.fork()
        if self._pid == 0:
            self._compute(sent, function, items, queue)
        sent.close()

    def _compute(self, sent: Connection, function: Callable[[Any], Any], items: Sequence[Any], queue: int) -> None:
        """Send the results, or nothing after an error, and exit."""
        try:
            with suppress(Exception):
                sent.send(_compute(function, items, queue))
        finally:
            os._exit(0)

    def results(self) -> dict[int, Any]:
        """Return the results by the positions of the items; no result if the fork failed."""
        try:
            with self._received:
                return self._received.recv()
        except (EOFError, OSError):
            return {}
        finally:
            os.waitpid(self._pid, 0)
