"""What is still being written: owned by one living process, published whole or swept away.

The one place that translates an unusable artifacts folder or a full disk into EnvironmentUnusable.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tasks.errors import EnvironmentUnusable

_ANOTHER_DISK = "free some space there, or set artifacts=FOLDER to a folder on another disk"
_ANOTHER_FOLDER = "make it writable, or set artifacts=FOLDER to a folder that is"
_NOT_A_FOLDER = "a file is in the way: move it, or set artifacts=FOLDER to another folder"
_ELSEWHERE = "no folder can be made there: set artifacts=FOLDER to another"
_ADVICE = {
    errno.ENOSPC: _ANOTHER_DISK,
    errno.EDQUOT: _ANOTHER_DISK,
    errno.EFBIG: _ANOTHER_DISK,
    errno.EACCES: _ANOTHER_FOLDER,
    errno.EPERM: _ANOTHER_FOLDER,
    errno.EROFS: _ANOTHER_FOLDER,
    errno.ENOTDIR: _NOT_A_FOLDER,
    errno.EEXIST: _NOT_A_FOLDER,
    errno.EISDIR: "a folder is where a file belongs: remove it, or set artifacts=FOLDER to another folder",
    errno.ENOENT: _ELSEWHERE,
    errno.ELOOP: _ELSEWHERE,
    errno.ENAMETOOLONG: _ELSEWHERE,
    errno.EXDEV: "keep the whole artifacts folder on one file system",
}


@contextmanager
def translate_os_errors(path: Path) -> Generator[None]:
    """Raise EnvironmentUnusable, with what to do, for an OSError that says `path` or its disk cannot be used."""
    try:
        yield
    except OSError as error:
        if error.errno not in _ADVICE:
            raise
        at = error.filename2 or error.filename or path
        why = os.strerror(error.errno)
        raise EnvironmentUnusable(f"artifacts: cannot use {at}: {why}", remedy=_ADVICE[error.errno]) from error


def temporary_name() -> str:
    """A fresh name that tells its owner, `<host>-<pid>-<random>`, so that a sweep knows whether anyone still writes."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(8)}"


@contextmanager
def temporary_file(folder: Path) -> Generator[tuple[Path, BinaryIO]]:
    """A new file in `folder` to write to, removed at the end unless `commit` has moved it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / temporary_name()
    try:
        with path.open("xb") as file:
            yield path, file
    finally:
        path.unlink(missing_ok=True)


def commit(partial: Path, file: BinaryIO, final: Path) -> None:
    """Move the written file to its final name, durably: its bytes first, then the name."""
    file.flush()
    os.fsync(file.fileno())
    final.parent.mkdir(parents=True, exist_ok=True)
    partial.replace(final)
    # The name must survive a power cut too: what refers to it may be written right after.
    folder = os.open(final.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_atomically(path: Path, data: bytes, *, partial: Path) -> None:
    """Write `path` so that every reader sees the old content or the whole new one; folders are made as needed.

    `partial` is the store's folder for what is being written, on the file system of `path`. Raises
    EnvironmentUnusable, with what to do, if `path` cannot be written.
    """
    with translate_os_errors(path), temporary_file(partial) as (written, file):
        file.write(data)
        commit(written, file, path)


def remove_stale(folder: Path) -> int:
    """Remove what dead processes of this host left in `folder`; say how many leftovers there were.

    Never touches what belongs to a living process, to another host, or has a name that tells no owner.
    """
    try:
        leftovers = [path for path in folder.iterdir() if owner_is_dead(path.name)]
    except FileNotFoundError:
        return 0
    for path in leftovers:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            # Another process sweeps at the same time, or the file is another user's.
            with suppress(FileNotFoundError, PermissionError):
                path.unlink()
    return len(leftovers)


def owner_is_dead(name: str) -> bool:
    """Whether `name` is an `temporary_name` whose owner, a process of this host, is dead."""
    owner = re.fullmatch(r"(.+)-([0-9]+)-[0-9a-f]{16}", name)
    if owner is None or owner[1] != socket.gethostname():
        return False
    try:
        os.kill(int(owner[2]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # alive, and another user's
    return False
