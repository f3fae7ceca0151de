"""Who works in a store now: any number of sweeps together, or one alone who removes what nobody needs.

The kernel holds the lock (on the folder of the blobs) and lets go of it when its holder dies, however that happens.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager

from tasks.errors import EnvironmentUnusable
from tasks.storage.atomic import translate_os_errors
from tasks.storage.store import Store


@contextmanager
def shared(store: Store) -> Generator[None]:
    """Nothing is removed from the store as long as the context lasts. Waits while somebody removes something."""
    with _locked(store, fcntl.LOCK_SH):
        yield


@contextmanager
def exclusive(store: Store) -> Generator[None]:
    """Nobody else works in the store as long as the context lasts. Raises EnvironmentUnusable where somebody does."""
    try:
        with _locked(store, fcntl.LOCK_EX | fcntl.LOCK_NB):
            yield
    except BlockingIOError:
        raise EnvironmentUnusable(
            f"artifacts={store.root}: a sweep is going on there, so nothing was removed",
            remedy="prune when it has ended",
        ) from None


@contextmanager
def _locked(store: Store, how: int) -> Generator[None]:
    with translate_os_errors(store.blobs):
        store.blobs.mkdir(parents=True, exist_ok=True)
        folder = os.open(store.blobs, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, how)
        yield
    finally:
        os.close(folder)
