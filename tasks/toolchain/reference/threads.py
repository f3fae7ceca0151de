"""Independent computations with large tensors in several threads. NumPy and PyTorch release the interpreter's lock."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_MOST_THREADS = 4  # the temporary tensors of so many computations exist at once


def in_threads(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return the results of a function for all items, in their order. Raises the first error.

    PyTorch uses one thread per computation: therefore results do not depend on the number of cores.
    """
    import torch  # here, because the process that only plans the stages never loads PyTorch

    threads = min(len(os.sched_getaffinity(0)), _MOST_THREADS)
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(function, items))
