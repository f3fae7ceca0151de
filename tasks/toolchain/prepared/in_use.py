"""The lock of a folder of toolchains or of one toolchain, which is the folder itself.

Every process that uses a toolchain holds its folder until it ends, with its forks. The kernel releases a lock when the
last process that holds it has ended, even if it was killed.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path


@cache
def hold(folder: Path) -> int:
    """Hold a toolchain until this process ends, so that nobody removes it. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


@contextmanager
def exclusive(folder: Path, *, wait: bool = False) -> Iterator[bool]:
    """Yield whether no other process holds the folder; then none can until the end of the context.

    `wait`: wait until the others have ended.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
