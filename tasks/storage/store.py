"""The store: bytes named by their sha256, complete or absent, whatever is killed or written at the same time.

Everything is written below `<root>/partial` first, synced, and then renamed into place. With an object store the folder
is only this machine's copy: a blob is uploaded when it is put, and fetched when it is used and not here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from errno import EACCES
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.errors import EvidenceError
from tasks.records import Blob
from tasks.storage.atomic import (
    commit,
    remove_stale,
    temporary_file,
    temporary_name,
    translate_os_errors,
    write_atomically,
)
from tasks.storage.files import Files, Folder

if TYPE_CHECKING:
    from tasks.storage.bucket import Bucket

_CHUNK_BYTES = 1 << 20
_READ_ONLY = 0o444


class Store:
    """Content-addressed blobs below one folder, shared by any number of processes.

    Layout: `blobs/<first two digits>/<sha256>`, read-only, and `partial/` for what is still being written.
    `files` are the other files of the same place: results, tables, runs. Where `url` names an object store, the place
    is there and `root` this machine's folder for it. A plain value, which may go to another process.
    Every method raises EnvironmentUnusable, with what to do, where the place cannot be used or the disk is full.
    """

    def __init__(self, root: Path, url: str | None = None) -> None:
        # Absolute: toolchain workers change their working directory.
        self.root = root.absolute()
        self.url = url
        self.blobs = self.root / "blobs"
        self.partial = self.root / "partial"
        self.location = url or str(root)
        self._bucket = _bucket(url, self.root / "copies", self.partial) if url else None

    @classmethod
    def at(cls, artifacts: str, cache_folder: str | None = None) -> Store:
        """The store of `artifacts=`, a folder or `s3://bucket/prefix`. Nothing is made or asked for yet."""
        if "://" not in artifacts:
            return cls(Path(artifacts))
        url = artifacts.rstrip("/")
        return cls(Path(cache_folder).expanduser() if cache_folder else _default_cache(url), url)

    @classmethod
    def open(cls, root: Path, url: str | None = None) -> Store:
        """The store at `root`, made if need be, after a trial write."""
        store = cls(root, url)
        store.check_writable()
        return store

    @property
    def files(self) -> Files:
        return self._bucket or Folder(self.root, self.partial)

    def display_path(self, name: str) -> str:
        """Where a file of the place lies, as a person would type it."""
        return f"{self.location}/{name}"

    def link(self, name: str) -> str:
        """The URL of a file of the place."""
        return self.display_path(name) if self.url else (self.root / name).as_uri()

    def check_writable(self) -> None:
        """A trial write, here and in the object store; folders are made as needed."""
        with translate_os_errors(self.blobs):
            self.blobs.mkdir(parents=True, exist_ok=True)
            # Asked, not tried: a trial file killed half way would lie among the blobs.
            if not os.access(self.blobs, os.W_OK | os.X_OK):
                raise OSError(EACCES, os.strerror(EACCES), str(self.blobs))
        with translate_os_errors(self.partial), temporary_file(self.partial) as (_, file):
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
        if self._bucket is not None:
            self._bucket.check_writable()

    def put_bytes(self, data: bytes) -> Blob:
        """Keep `data`."""
        blob = Blob(sha256=hashlib.sha256(data).hexdigest(), size=len(data))
        if self._bucket is None and _size(self._place(blob)) == blob.size:
            return blob
        return self._put([data])

    def put_file(self, path: Path) -> Blob:
        """Keep a copy of the file at `path`, read in pieces. OSError if `path` itself cannot be opened."""
        with path.open("rb") as source:
            return self._put(iter(lambda: source.read(_CHUNK_BYTES), b""))

    def path(self, blob: Blob) -> Path:
        """Where the blob's bytes lie, for reading only. Raises EvidenceError if they are absent or of another size."""
        path = self._place(blob)
        size = _size(path)
        if size == blob.size:
            return path
        if self._bucket is not None:
            return self._fetched(blob, self._bucket)
        if size is None:
            raise EvidenceError(f"{path} is missing: {_make_anew(path)}")
        raise EvidenceError(f"{path} has {size} bytes and not {blob.size}: {_make_anew(path)}")

    def find(self, sha256: str) -> Blob | None:
        """The blob of that name, or None where the store has none."""
        size = _size(self._place(Blob(sha256=sha256, size=0)))
        if size is None and self._bucket is not None:
            size = self._bucket.size(_name(sha256))
        return None if size is None else Blob(sha256=sha256, size=size)

    def has(self, blob: Blob) -> bool:
        """Whether the place has bytes of that name and size, for any machine that uses it. Downloads nothing."""
        return self.files.size(_name(_checked(blob))) == blob.size

    def read(self, blob: Blob) -> bytes:
        """The blob's bytes. Raises EvidenceError unless they are exactly what the blob names."""
        path = self.path(blob)
        with translate_os_errors(path):
            data = path.read_bytes()
        found = hashlib.sha256(data).hexdigest()
        if found != blob.sha256 and self._bucket is not None:
            return self._fetched(blob, self._bucket).read_bytes()
        _check(path, blob, found)
        return data

    def verify(self, blob: Blob) -> None:
        """Read the blob's bytes in pieces. Raises EvidenceError unless they are exactly what the blob names."""
        path = self.path(blob)
        with translate_os_errors(path), path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != blob.sha256 and self._bucket is not None:
            self._fetched(blob, self._bucket)
            return
        _check(path, blob, found)

    def link_named(self, folder: str, blobs: Mapping[str, Blob]) -> None:
        """Show blobs below `folder` under names a person would look for, as hard links, which cost no bytes.

        An object store has no links: there `<folder>.json` says which object each name is.
        """
        if self._bucket is not None:
            objects = {name: _name(blob.sha256) for name, blob in blobs.items()}
            self._bucket.write(f"{folder}.json", json.dumps(objects, indent=1).encode())
            return
        for name, blob in blobs.items():
            _link(self.path(blob), self.root / folder / name, self.partial)

    def read_named(self, folder: str, name: str) -> bytes:
        """What `link_named` shows there under that name. Raises FileNotFoundError."""
        if self._bucket is None:
            return self.files.read(f"{folder}/{name}")
        objects = json.loads(self._bucket.read(f"{folder}.json"))
        if name not in objects:
            raise FileNotFoundError(f"{folder}/{name}")
        return self._bucket.read(objects[name])

    @contextmanager
    def scratch(self, name: str) -> Generator[Path]:
        """A fresh, empty folder called `name`, gone with all that is in it when the context ends."""
        if name in ("", ".", "..") or "/" in name:
            raise ValueError(f"a scratch folder's name is one path component, not {name!r}")
        owned = self.partial / temporary_name()
        folder = owned / name
        with translate_os_errors(folder):
            folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            # A stray worker may still be writing here; what stays now goes with a later remove_stale_temporaries.
            shutil.rmtree(owned, ignore_errors=True)

    def remove_stale_temporaries(self) -> int:
        """Remove what killed processes of this host left half written; say how many leftovers there were.

        Never touches what belongs to a living process, to another host, or to nobody this store knows.
        """
        with translate_os_errors(self.partial):
            return remove_stale(self.partial)

    def _place(self, blob: Blob) -> Path:
        return self.root / _name(_checked(blob))

    def _fetched(self, blob: Blob, bucket: Bucket) -> Path:
        """The blob's bytes, downloaded and held against its name."""
        path, name = self._place(blob), _name(blob.sha256)
        with translate_os_errors(path), temporary_file(self.partial) as (partial, file):
            try:
                found = bucket.fetch(name, file)
            except FileNotFoundError:
                raise EvidenceError(f"{self.display_path(name)} is missing: {_make_anew(path)}") from None
            if found != blob.sha256:
                raise EvidenceError(f"{self.display_path(name)} is damaged, its sha256 is {found}: {_make_anew(path)}")
            os.fchmod(file.fileno(), _READ_ONLY)
            commit(partial, file, path)
        return path

    def _put(self, chunks: Iterable[bytes]) -> Blob:
        sha256 = hashlib.sha256()
        size = 0
        with translate_os_errors(self.blobs), temporary_file(self.partial) as (partial, file):
            for chunk in chunks:
                sha256.update(chunk)
                size += file.write(chunk)
            blob = Blob(sha256=sha256.hexdigest(), size=size)
            final = self._place(blob)
            if self._bucket is not None:
                # Before anything can name it, and from the bytes that were just digested.
                file.flush()
                self._bucket.keep(partial, _name(blob.sha256), size)
            # One of another size is damaged: it is replaced.
            if not (final.is_file() and final.stat().st_size == size):
                os.fchmod(file.fileno(), _READ_ONLY)
                commit(partial, file, final)
        return blob


def _default_cache(url: str) -> Path:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "qnnsweep" / hashlib.sha256(url.encode()).hexdigest()[:16]


def _bucket(url: str, copies: Path, partial: Path) -> Bucket:
    # pyarrow takes a moment to import, and no worker needs it otherwise.
    from tasks.storage.bucket import Bucket

    return Bucket(url, copies=copies, partial=partial)


def _checked(blob: Blob) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", blob.sha256):
        raise EvidenceError(f"{blob.sha256!r} is not a sha256: the record that names it is damaged")
    return blob.sha256


def _name(sha256: str) -> str:
    return f"blobs/{sha256[:2]}/{sha256}"


def _size(path: Path) -> int | None:
    with translate_os_errors(path):
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None


def _link(blob: Path, name: Path, partial: Path) -> None:
    name.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(blob, name)
    except FileExistsError:  # an earlier attempt at the same shard has left it
        if not name.samefile(blob):
            newer = partial / temporary_name()
            os.link(blob, newer)
            newer.replace(name)
    except PermissionError:  # a file system without hard links
        write_atomically(name, blob.read_bytes(), partial=partial)


def _check(path: Path, blob: Blob, found: str) -> None:
    if found != blob.sha256:
        raise EvidenceError(f"{path} is damaged, its sha256 is {found}: {_make_anew(path)}")


def _make_anew(path: Path) -> str:
    return f"restore {path.name} from a copy of this folder, or run again with artifacts=FOLDER set to an empty folder"
