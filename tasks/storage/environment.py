"""Changes of this process's environment variables for a moment, and texts that do not tell of the environment."""

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast


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


def without_home(value: Any) -> Any:
    """Return the value with `~` for the user's home folder in every text. It is for what people hand on."""
    if isinstance(value, str):
        return value.replace(_home(), "~/")
    if isinstance(value, dict):
        return {name: without_home(part) for name, part in cast(dict[str, Any], value).items()}
    if isinstance(value, list | tuple):
        parts = map(without_home, cast(list[Any], value))
        return tuple(parts) if isinstance(value, tuple) else list(parts)
    return value


@cache
def _home() -> str:
    return f"{Path.home()}/"
