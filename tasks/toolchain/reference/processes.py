"""Independent computations in several processes, for code that holds the interpreter's lock too often for threads."""

import io
import math
import mmap
import os
import signal
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from typing import IO, Any, TypeVar, cast

T = TypeVar("T")
R = TypeVar("R")

_MOST_PROCESSES = 4  # the temporary tensors of so many computations exist at once
_LEAST_PATIENCE_S = 20.0
_PATIENCE = 3.0  # how often the time that this process needed for its part, a fork may need in addition
_POSITION_BYTES = 4  # of an item, in the queue
_MOST_ITEMS = 2**14  # their positions fit into a pipe
_ALIGNMENT_BYTES = 64  # of an array's first element


def in_processes(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return the results of a function for all items, in their order. Raises the first error.

    Forks of this process compute a part of the items and pickle the results. What else the function changes in a fork
    is lost. If a fork fails, for example because memory is short, this process computes its items. It does so, too, if
    a fork is not ready long after this process: in about 1 of 100 forks of a process that has computed in threads,
    MKL's allocator searches its list of threads for ever (`mm_account_ptr_by_tid`).

    PyTorch uses one thread per process: therefore results do not depend on the number of cores.
    """
    import torch  # here, because the process that only plans the stages never loads PyTorch

    items = list(items)
    results: dict[int, R] = {}
    count = min(len(os.sched_getaffinity(0)), _MOST_PROCESSES, len(items))
    threads, start = torch.get_num_threads(), time.monotonic()
    torch.set_num_threads(1)
    try:
        with _queue(range(min(len(items), _MOST_ITEMS))) as queue:
            forks = [_Fork(function, items, queue) for _ in range(count - 1)]
            try:
                results |= _compute(function, items, queue)
            except BaseException:
                os.read(queue, _POSITION_BYTES * _MOST_ITEMS)  # the forks need not compute the other items
                raise
            finally:
                patience_s = max(_LEAST_PATIENCE_S, _PATIENCE * (time.monotonic() - start))
                for fork in forks:
                    results |= fork.results(patience_s)
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
    """A fork of this process that computes items of a queue, and writes the results into a file in memory."""

    def __init__(self, function: Callable[[Any], Any], items: Sequence[Any], queue: int) -> None:
        self._file = os.fdopen(os.memfd_create("results"), "w+b")
        self._pid = os.fork()
        if self._pid == 0:
            self._compute(function, items, queue)

    def _compute(self, function: Callable[[Any], Any], items: Sequence[Any], queue: int) -> None:
        """Write the results and exit, with 1 after an error."""
        status = 1
        try:
            with suppress(Exception):
                _write(self._file, _compute(function, items, queue))
                status = 0
        finally:
            os._exit(status)

    def results(self, patience_s: float) -> dict[int, Any]:
        """Return the results by the positions of the items; no result if the fork failed, or is not ready in time."""
        with self._file:
            pidfd = os.pidfd_open(self._pid)
            try:
                if not wait([pidfd], patience_s):
                    os.kill(self._pid, signal.SIGKILL)
            finally:
                os.close(pidfd)
            _, status = os.waitpid(self._pid, 0)
            return _read(self._file) if status == 0 else {}


def _write(file: IO[bytes], results: dict[int, Any]) -> None:
    """Write the pickled results, and their arrays behind it, so that `_read` need not copy the arrays."""
    pickled, arrays = io.BytesIO(), list[Any]()
    ForkingPickler(pickled, 5, True, arrays.append).dump(results)
    parts = [pickled.getbuffer(), *(array.raw() for array in arrays)]
    file.write(struct.pack(f"={1 + len(parts)}Q", len(parts), *(part.nbytes for part in parts)))
    for part in parts:
        file.seek(_aligned(file.tell()))
        file.write(part)
    file.flush()


def _read(file: IO[bytes]) -> dict[int, Any]:
    """Return the results. Their arrays are in the file, which is freed with the last of them."""
    mapped = memoryview(mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE))
    (count,) = struct.unpack_from("=Q", mapped)
    parts: list[memoryview] = []
    end = (1 + count) * struct.calcsize("=Q")
    for size in struct.unpack_from(f"={count}Q", mapped, struct.calcsize("=Q")):
        start = _aligned(end)
        end = start + size
        parts.append(mapped[start:end])
    pickled, *arrays = parts
    return cast(Any, ForkingPickler).loads(pickled, buffers=arrays)


def _aligned(position: int) -> int:
    """Return the next position at which an array of any type can begin."""
    return math.ceil(position / _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
