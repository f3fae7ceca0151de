"""Changes of this process's environment variables for a moment."""

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager


@contextmanager
def changed_environment(changes: Mapping[str, str]) -> Generator[None]:
    """Set environment variables until the context ends. Not thread-safe: all threads see the changes."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
