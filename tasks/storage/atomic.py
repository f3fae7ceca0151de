"""Atomic writes: a file is written under a temporary name, then renamed.

Temporary files of dead processes are removed. This is the only module that translates an unusable artifacts folder or a
full disk into EnvironmentUnusable.
"""

import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from qnnsweep.tasks.errors import EnvironmentUnusable

_REMEDIES = {
    "free some space there, or set artifacts=FOLDER to a folder on another disk": ("ENOSPC", "EDQUOT", "EFBIG"),
    "make it writable, or set artifacts=FOLDER to a writable folder": ("EACCES", "EPERM", "EROFS"),
    "there is a file of that name: move it, or set artifacts=FOLDER to another folder": ("ENOTDIR", "EEXIST"),
    "a folder is where a file belongs: remove it, or set artifacts=FOLDER to another folder": ("EISDIR",),
    "no folder can be created there: set artifacts=FOLDER to another folder": ("ENOENT", "ELOOP", "ENAMETOOLONG"),
    "keep the whole artifacts folder on one file system": ("EXDEV",),
}

_FORGOTTEN_S = 7 * 86_400.0
"""The time after which a temporary file of a process of another boot or container is removed."""


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


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that created a temporary file."""

    host: str
    namespace: str
    """Identifies the boot of the machine and the namespace of the process id: hosts and containers can share a name."""
    pid: int


def temporary_name() -> str:
    """Return a new name `<host>-<namespace>-<pid>-<random>`, which identifies its owner, this process."""
    return f"{socket.gethostname()}-{_namespace()}-{os.getpid()}-{secrets.token_hex(8)}"


def owner_of(name: str) -> Owner | None:
    """Return the owner of a `temporary_name`, or None for another name."""
    parts = re.fullmatch(r"(.+)-([0-9a-f]{16})-([0-9]+)-[0-9a-f]{16}", name)
    return None if parts is None else Owner(parts[1], parts[2], int(parts[3]))


def _namespace() -> str:
    # Not cached: a fork of this process can be in another namespace.
    boot, namespace = Path("/proc/sys/kernel/random/boot_id").read_text(), Path("/proc/self/ns/pid").stat().st_ino
    return hashlib.sha256(f"{boot} {namespace}".encode()).hexdigest()[:16]


@contextmanager
def temporary_file(folder: Path) -> Generator[tuple[Path, BinaryIO]]:
    """Open a new file in `folder` for writing. When the context ends, the file is removed unless `commit` moved it."""
    make_folder(folder)
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
    make_folder(final.parent)
    temporary.replace(final)
    # The name must survive a power cut too: a file that refers to this file may be written immediately afterwards.
    sync_folder(final.parent)


def make_folder(folder: Path) -> None:
    """Create the folder and its parents, unless it exists. Sync the names of all new folders to disk."""
    try:
        folder.mkdir()
    except FileNotFoundError:
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
    except OSError:
        if folder.is_dir():
            return
        raise
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Sync the names in the folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes, *, partial: Path) -> None:
    """Write `path` so that every reader sees either the old or the complete new content. Create folders as needed.

    `partial`: the store's folder for temporary files, on the file system of `path`. Raises EnvironmentUnusable.
    """
    with translate_os_errors(path), temporary_file(partial) as (temporary, file):
        file.write(data)
        commit(temporary, file, path)


def remove_stale(folder: Path) -> int:
    """Remove the temporary files and folders of this host's dead processes from `folder`. Return the number removed.

    Temporary files of living processes or of other hosts, and names without an owner, are never touched. Whether a
    process of another boot or container is alive cannot be known: its files are removed a week after their last change.
    """
    try:
        stale = [path for path in folder.iterdir() if owner_is_dead(path.name) or _is_forgotten(path)]
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
    """Return whether `name` is a `temporary_name` whose owner, a process that this process could see, is dead."""
    owner = owner_of(name)
    if owner is None or (owner.host, owner.namespace) != (socket.gethostname(), _namespace()):
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # the process exists and belongs to another user
    return False


def _is_forgotten(path: Path) -> bool:
    """Return whether the file or folder is of a host of this name and has not changed for a week."""
    owner = owner_of(path.name)
    if owner is None or owner.host != socket.gethostname() or owner.namespace == _namespace():
        return False
    changed: list[float] = []
    for file in (path, *path.rglob("*")):
        with suppress(FileNotFoundError):
            changed.append(file.lstat().st_mtime)
    return time.time() - max(changed, default=time.time()) > _FORGOTTEN_S
