"""The lock of a store: shared by any number of sweeps, or held exclusively by a prune or a repair.

The lock is an flock on the folder of the blobs. The kernel releases the lock when the process that holds it ends,
even if the process is killed.
"""

import fcntl
import os
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager

from qnnsweep.tasks.errors import EnvironmentUnusable
from qnnsweep.tasks.storage.atomic import make_folder, translate_os_errors
from qnnsweep.tasks.storage.store import Store


def shared(store: Store) -> AbstractContextManager[None]:
    """Prevent prunes of the store during the context. Waits for a prune that is running."""
    return _locked(store, fcntl.LOCK_SH)


@contextmanager
def exclusive(store: Store) -> Generator[None]:
    """Hold the store exclusively during the context. Raises EnvironmentUnusable if another process holds the lock."""
    try:
        with _locked(store, fcntl.LOCK_EX | fcntl.LOCK_NB):
            yield
    except BlockingIOError:
        raise EnvironmentUnusable(
            f"artifacts={store.root}: a sweep is running there, so nothing was removed",
            remedy="try again when it has ended",
        ) from None


@contextmanager
def _locked(store: Store, operation: int) -> Generator[None]:
    with translate_os_errors(store.blobs):
        make_folder(store.blobs)
        folder = os.open(store.blobs, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, operation)
        yield
    finally:
        os.close(folder)
