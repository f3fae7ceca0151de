"""Random numbers and sums that are bit-reproducible on one machine."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator and compute on one thread. At the end of the context, restore generator and threads.

    One thread is used, because a parallel sum is split by the number of threads and floating-point addition is not
    associative: the same training on another number of cores would give other weights, and other cache keys.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)
