"""The files of a store, with names such as `tables/cells/run=…/part.parquet`.

The protocol `Files` has two implementations: `Folder` for a local folder, and `qnnsweep.tasks.storage.bucket.Bucket`
for an object store.
"""

import shutil
from pathlib import Path
from stat import S_ISREG
from typing import Protocol

from qnnsweep.tasks.storage.atomic import translate_os_errors, write_atomically


class Files(Protocol):
    """Files that are written atomically: a concurrent reader sees either the old or the complete new content.

    Every method raises EnvironmentUnusable, with a remedy, if the store cannot be used.
    """

    def read(self, name: str) -> bytes:
        """Return the content. Raises FileNotFoundError if there is no file of that name."""
        ...

    def write(self, name: str, data: bytes) -> None: ...

    def size(self, name: str) -> int | None:
        """Return the size in bytes, or None if there is no file of that name."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the sorted names of all files below `folder`, at any depth."""
        ...

    def remove(self, name: str) -> None:
        """Remove the file. A missing file is no error."""
        ...

    def remove_all(self, folder: str) -> None:
        """Remove everything below `folder`."""
        ...

    def local(self, name: str) -> Path:
        """Return the path of a local file with the content, for reading only. Raises FileNotFoundError."""
        ...


class Folder:
    """The files below a folder of this machine."""

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
                stat = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return stat.st_size if S_ISREG(stat.st_mode) else None

    def names(self, folder: str) -> list[str]:
        files = (path for path in (self._root / folder).rglob("*") if path.is_file())
        return sorted(path.relative_to(self._root).as_posix() for path in files)

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
