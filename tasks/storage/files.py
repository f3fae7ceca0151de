"""Whole files of one artifacts place by their names below it, `tables/cells/run=…/part.parquet`: in a folder.

`tasks.storage.bucket` is the same for an object store.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from stat import S_ISREG
from typing import Protocol

from tasks.storage.atomic import translate_os_errors, write_atomically


class Files(Protocol):
    """A reader sees the old content of a name or the whole new one, whoever writes at the same time.

    Every method raises EnvironmentUnusable, with what to do, where the place cannot be used.
    """

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError if there is no file of that name."""
        ...

    def write(self, name: str, data: bytes) -> None: ...

    def size(self, name: str) -> int | None:
        """In bytes; None if there is no file of that name."""
        ...

    def names(self, folder: str) -> list[str]:
        """All names below `folder`, at any depth, in order."""
        ...

    def remove(self, name: str) -> None:
        """No file of that name is no error."""
        ...

    def remove_all(self, folder: str) -> None:
        """All that is below `folder`."""
        ...

    def local(self, name: str) -> Path:
        """A file of this machine with its content, for reading only. Raises FileNotFoundError."""
        ...


class Folder:
    """Files below a folder of this machine."""

    def __init__(self, root: Path, partial: Path) -> None:
        self._root = root
        self._partial = partial

    def read(self, name: str) -> bytes:
        return (self._root / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        write_atomically(self._root / name, data, partial=self._partial)

    def size(self, name: str) -> int | None:
        path = self._root / name
        with translate_os_errors(path):
            try:
                found = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return found.st_size if S_ISREG(found.st_mode) else None

    def names(self, folder: str) -> list[str]:
        found = (path for path in (self._root / folder).rglob("*") if path.is_file())
        return sorted(path.relative_to(self._root).as_posix() for path in found)

    def remove(self, name: str) -> None:
        path = self._root / name
        with translate_os_errors(path):
            path.unlink(missing_ok=True)

    def remove_all(self, folder: str) -> None:
        path = self._root / folder
        with translate_os_errors(path):
            shutil.rmtree(path)

    def local(self, name: str) -> Path:
        path = self._root / name
        if not path.is_file():
            raise FileNotFoundError(path)
        return path
