"""Atomic writes: a file is written under a temporary name, then renamed.

Temporary files of dead processes are removed. This is the only module that translates an unusable artifacts folder or a
full disk into EnvironmentUnusable.
"""

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

_REMEDIES = {
    "free some space there, or set artifacts=FOLDER to a folder on another disk": ("ENOSPC", "EDQUOT", "EFBIG"),
    "make it writable, or set artifacts=FOLDER to a writable folder": ("EACCES", "EPERM", "EROFS"),
    "there is a file of that name: move it, or set artifacts=FOLDER to another folder": ("ENOTDIR", "EEXIST"),
    "a folder is where a file belongs: remove it, or set artifacts=FOLDER to another folder": ("EISDIR",),
    "no folder can be created there: set artifacts=FOLDER to another folder": ("ENOENT", "ELOOP", "ENAMETOOLONG"),
    "keep the whole artifacts folder on one file system": ("EXDEV",),
}


@contextmanager
def translate_os_errors(path: Path) -> Generator[None]:
    """Raise EnvironmentUnusable, with a remedy, for an OSError which means that `path` or its disk cannot be used."""
    try:
        yield
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0)
        remedy = next((remedy for remedy, codes in _REMEDIES.items() if code in codes), None)
        if remedy is None:
            raise
        problem = f"cannot use {error.filename2 or error.filename or path}: {os.strerror(error.errno or 0)}"
        raise EnvironmentUnusable(f"artifacts: {problem}", remedy=remedy) from error


def temporary_name() -> str:
    """Return a new name `<host>-<pid>-<random>`. Host and process id identify the owner, which is this process."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(8)}"


@contextmanager
def temporary_file(folder: Path) -> Generator[tuple[Path, BinaryIO]]:
    """Open a new file in `folder` for writing. When the context ends, the file is removed unless `commit` moved it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / temporary_name()
    try:
        with path.open("xb") as file:
            yield path, file
    finally:
        path.unlink(missing_ok=True)


def commit(temporary: Path, file: BinaryIO, final: Path) -> None:
    """Sync the bytes of a written file to disk, move the file to the path `final`, and sync the folder of that path."""
    file.flush()
    os.fsync(file.fileno())
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary.replace(final)
    # The name must survive a power cut too: a file that refers to this file may be written immediately afterwards.
    folder = os.open(final.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_atomically(path: Path, data: bytes, *, partial: Path) -> None:
    """Write `path` so that every reader sees either the old or the complete new content. Create folders as needed.

    `partial`: the store's folder for temporary files, on the file system of `path`. Raises EnvironmentUnusable.
    """
    with translate_os_errors(path), temporary_file(partial) as (temporary, file):
        file.write(data)
        commit(temporary, file, path)


def remove_stale(folder: Path) -> int:
    """Remove the temporary files and folders of this host's dead processes from `folder`. Return the number removed.

    Temporary files of living processes or of other hosts, and names without an owner, are never touched.
    """
    try:
        stale = [path for path in folder.iterdir() if owner_is_dead(path.name)]
    except FileNotFoundError:
        return 0
    for path in stale:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            # Another process may remove the file at the same time, or the file may belong to another user.
            with suppress(FileNotFoundError, PermissionError):
                path.unlink()
    return len(stale)


def owner_is_dead(name: str) -> bool:
    """Return whether `name` is a `temporary_name` whose owner, a process of this host, is dead."""
    owner = re.fullmatch(r"(.+)-([0-9]+)-[0-9a-f]{16}", name)
    if owner is None or owner[1] != socket.gethostname():
        return False
    try:
        os.kill(int(owner[2]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # the process exists and belongs to another user
    return False
