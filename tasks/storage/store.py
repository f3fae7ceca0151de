"""The store: bytes named by their sha256, complete or absent, whatever is killed or written at the same time.

Everything is written below `<root>/partial` first, synced, and then renamed into place.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from errno import EACCES
from pathlib import Path

from tasks.errors import EvidenceError
from tasks.records import Blob
from tasks.storage.partial import owned_name, publish, sweep, unpublished, usable

_CHUNK_BYTES = 1 << 20
_READ_ONLY = 0o444


class Store:
    """Content-addressed blobs below one folder, shared by any number of processes.

    Layout: `blobs/<first two digits>/<sha256>`, read-only, and `partial/` for what is still being written.
    Every method raises EnvironmentUnusable, with what to do, where the folder cannot be used or the disk is full.
    """

    def __init__(self, root: Path) -> None:
        # Absolute: toolchain children change their working directory.
        self.root = root.absolute()
        self.blobs = self.root / "blobs"
        self.partial = self.root / "partial"

    @classmethod
    def open(cls, root: Path) -> Store:
        """The store at `root`, made if need be, after a trial write."""
        store = cls(root)
        with usable(store.blobs):
            store.blobs.mkdir(parents=True, exist_ok=True)
            # Asked, not tried: a trial file killed half way would lie among the blobs.
            if not os.access(store.blobs, os.W_OK | os.X_OK):
                raise OSError(EACCES, os.strerror(EACCES), str(store.blobs))
        with usable(store.partial), unpublished(store.partial) as (_, file):
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
        return store

    def put_bytes(self, data: bytes) -> Blob:
        """Keep `data`."""
        return self._put([data])

    def put_file(self, path: Path) -> Blob:
        """Keep a copy of the file at `path`, read in pieces. OSError if `path` itself cannot be opened."""
        with path.open("rb") as source:
            return self._put(iter(lambda: source.read(_CHUNK_BYTES), b""))

    def path(self, blob: Blob) -> Path:
        """Where the blob's bytes lie, for reading only. Raises EvidenceError if they are absent or of another size."""
        path = self._place(blob)
        with usable(path):
            try:
                size = path.stat().st_size
            except FileNotFoundError:
                raise EvidenceError(f"{path} is missing: {_make_anew(path)}") from None
        if size != blob.size:
            raise EvidenceError(f"{path} has {size} bytes and not {blob.size}: {_make_anew(path)}")
        return path

    def find(self, sha256: str) -> Blob | None:
        """The blob of that name, or None where the store has none."""
        path = self._place(Blob(sha256=sha256, size=0))
        with usable(path):
            return Blob(sha256=sha256, size=path.stat().st_size) if path.is_file() else None

    def read(self, blob: Blob) -> bytes:
        """The blob's bytes. Raises EvidenceError unless they are exactly what the blob names."""
        path = self.path(blob)
        with usable(path):
            data = path.read_bytes()
        _check(path, blob, hashlib.sha256(data).hexdigest())
        return data

    def verify(self, blob: Blob) -> None:
        """Read the blob's bytes in pieces. Raises EvidenceError unless they are exactly what the blob names."""
        path = self.path(blob)
        with usable(path), path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        _check(path, blob, found)

    @contextmanager
    def scratch(self, name: str) -> Generator[Path]:
        """A fresh, empty folder called `name`, gone with all that is in it when the context ends."""
        if name in ("", ".", "..") or "/" in name:
            raise ValueError(f"a scratch folder's name is one path component, not {name!r}")
        owned = self.partial / owned_name()
        folder = owned / name
        with usable(folder):
            folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            # A stray child may still be writing here; what stays now goes with a later sweep_partial.
            shutil.rmtree(owned, ignore_errors=True)

    def sweep_partial(self) -> int:
        """Remove what killed processes of this host left half written; say how many leftovers there were.

        Never touches what belongs to a living process, to another host, or to nobody this store knows.
        """
        with usable(self.partial):
            return sweep(self.partial)

    def _place(self, blob: Blob) -> Path:
        if not re.fullmatch(r"[0-9a-f]{64}", blob.sha256):
            raise EvidenceError(f"{blob.sha256!r} is not a sha256: the record that names it is damaged")
        return self.blobs / blob.sha256[:2] / blob.sha256

    def _put(self, chunks: Iterable[bytes]) -> Blob:
        sha256 = hashlib.sha256()
        size = 0
        with usable(self.blobs), unpublished(self.partial) as (partial, file):
            for chunk in chunks:
                sha256.update(chunk)
                size += file.write(chunk)
            blob = Blob(sha256=sha256.hexdigest(), size=size)
            final = self._place(blob)
            # One of another size is damaged: it is replaced.
            if not (final.is_file() and final.stat().st_size == size):
                os.fchmod(file.fileno(), _READ_ONLY)
                publish(partial, file, final)
        return blob


def write_atomically(path: Path, data: bytes, *, partial: Path) -> None:
    """Write `path` so that every reader sees the old content or the whole new one; folders are made as needed.

    `partial` is the store's folder for what is being written, on the file system of `path`. Raises
    EnvironmentUnusable, with what to do, if `path` cannot be written.
    """
    with usable(path), unpublished(partial) as (written, file):
        file.write(data)
        publish(written, file, path)


def _check(path: Path, blob: Blob, found: str) -> None:
    if found != blob.sha256:
        raise EvidenceError(f"{path} is damaged, its sha256 is {found}: {_make_anew(path)}")


def _make_anew(path: Path) -> str:
    return f"restore {path.name} from a copy of this folder, or run again with artifacts=FOLDER set to an empty folder"
