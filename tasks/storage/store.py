"""The store: blobs named by their sha256. A blob is complete or absent, even after kills and concurrent writes.

Everything is first written below `<root>/partial`, synced, and then renamed into place. With an object store, `<root>`
has local copies of blobs. A blob is uploaded when it is stored, and downloaded when it is used but has no copy.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from errno import EACCES
from pathlib import Path
from typing import BinaryIO

from qnnsweep.conf.schema import ObjectStoreConfig
from qnnsweep.conf.toolchains import caches_folder
from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import Blob
from qnnsweep.tasks.storage.atomic import (
    commit,
    make_folder,
    remove_stale,
    sync_folder,
    temporary_file,
    temporary_name,
    translate_os_errors,
    write_atomically,
)
from qnnsweep.tasks.storage.files import Files, Folder

_CHUNK_BYTES = 1 << 20
_READ_ONLY = 0o444
_RUN_AGAIN = "run again to compute it again"


class Store:
    """Content-addressed blobs below one folder, shared by any number of processes.

    Layout: `blobs/<first two digits>/<sha256>`, read-only, and `partial/` for temporary files. `files` are the other
    files of the store: results, tables, runs. If `url` names an object store, all blobs and files are there, and `root`
    is this machine's folder for copies and temporary files. An instance can be pickled and used in another process.
    Every method raises EnvironmentUnusable, with a remedy, if the store cannot be used or the disk is full.
    """

    def __init__(self, root: Path, url: str | None = None, access: ObjectStoreConfig | None = None) -> None:
        # Absolute: toolchain workers change their working directory.
        self.root = root.absolute()
        self.url = url
        self.access = access or ObjectStoreConfig()
        self.blobs = self.root / "blobs"
        self.partial = self.root / "partial"
        self.location = url or str(root)
        self._folder = Folder(self.root, self.partial)
        self._bucket = None
        if url:
            from qnnsweep.tasks.storage.bucket import Bucket  # slow: it imports pyarrow, which few workers need

            self._bucket = Bucket(url, copies=self.root / "copies", partial=self.partial, access=self.access)

    @classmethod
    def at(cls, artifacts: str, cache_folder: str | None = None, access: ObjectStoreConfig | None = None) -> "Store":
        """Return the store at `artifacts`, a folder or `s3://bucket/prefix`. The store is not accessed yet.

        `access`: the timeout and the attempts of requests to an object store.
        """
        if "://" not in artifacts:
            return cls(Path(artifacts).expanduser())
        url = artifacts.rstrip("/")
        if cache_folder:
            return cls(Path(cache_folder).expanduser(), url, access)
        return cls(caches_folder(os.environ) / hashlib.sha256(url.encode()).hexdigest()[:16], url, access)

    @property
    def files(self) -> Files:
        return self._bucket or self._folder

    def display_path(self, name: str) -> str:
        """Return the path of a file of the store as a user would type it."""
        return f"{self.location}/{name}"

    def link(self, name: str) -> str:
        """Return the URL of a file of the store."""
        return self.display_path(name) if self.url else (self.root / name).as_uri()

    def check_writable(self) -> None:
        """Write test data to the folder and, if there is one, to the object store. Folders are created as needed."""
        with translate_os_errors(self.blobs):
            make_folder(self.blobs)
            # No test file here: if the process were killed, the file would remain among the blobs.
            if not os.access(self.blobs, os.W_OK | os.X_OK):
                raise OSError(EACCES, os.strerror(EACCES), str(self.blobs))
        with translate_os_errors(self.partial), temporary_file(self.partial) as (_, file):
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
        if self._bucket is not None:
            self._bucket.check_writable()

    def put_bytes(self, data: bytes) -> Blob:
        """Store `data` and return its blob."""
        blob = Blob(sha256=hashlib.sha256(data).hexdigest(), size=len(data))
        if self._bucket is None and self._folder.size(blob_name(blob.sha256)) == blob.size:
            return blob
        return self._put([data])

    def put_file(self, path: Path) -> Blob:
        """Store a copy of a file, which is read in pieces. Raises OSError if the file at `path` cannot be opened."""
        with path.open("rb") as source:
            return self._put(iter(lambda: source.read(_CHUNK_BYTES), b""))

    def take_file(self, path: Path) -> Blob:
        """Store a file of a scratch folder of this store. The file is moved, so that nothing is written twice.

        Raises OSError if the file at `path` cannot be opened.
        """
        with path.open("rb") as file, translate_os_errors(self.blobs):
            blob = Blob(sha256=hashlib.file_digest(file, "sha256").hexdigest(), size=path.stat().st_size)
            self._keep(path, file, blob)
        return blob

    def path(self, blob: Blob) -> Path:
        """Return the path of the blob's local file, for reading only.

        A file that is missing or of another size is downloaded. Raises EvidenceError if that is impossible. A damaged
        file is removed, so that the stage that wrote it computes it again in the next run.
        """
        size = self._folder.size(blob_name(blob.sha256))
        if size == blob.size:
            return self._file(blob)
        return self._downloaded(blob, "is missing" if size is None else f"has {size} bytes instead of {blob.size}")

    def find(self, sha256: str) -> Blob | None:
        """Return the blob with that sha256, or None if the store does not have it."""
        size = self._folder.size(blob_name(sha256))
        if size is None and self._bucket is not None:
            size = self._bucket.size(blob_name(sha256))
        return None if size is None else Blob(sha256=sha256, size=size)

    def has(self, blob: Blob) -> bool:
        """Return whether the store has the blob, without a download. A local copy of an object does not count."""
        return self.files.size(blob_name(blob.sha256)) == blob.size

    def read(self, blob: Blob) -> bytes:
        """Return the blob's bytes. A damaged blob is removed, and EvidenceError is raised."""
        path = self.path(blob)
        with translate_os_errors(path):
            data = path.read_bytes()
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 != blob.sha256:
            return self._downloaded(blob, f"is damaged, its sha256 is {sha256}").read_bytes()
        return data

    def read_end(self, blob: Blob, size: int) -> bytes:
        """Return the last `size` bytes of a large blob. A damaged blob is removed, and EvidenceError is raised."""
        self.verify(blob)
        path = self.path(blob)
        with translate_os_errors(path), path.open("rb") as file:
            file.seek(max(0, blob.size - size))
            return file.read(size)

    def verify(self, blob: Blob) -> None:
        """Check the sha256 of the blob's bytes. A damaged blob is removed, and EvidenceError is raised."""
        path = self.path(blob)
        with translate_os_errors(path), path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if sha256 != blob.sha256:
            self._downloaded(blob, f"is damaged, its sha256 is {sha256}")

    def link_named(self, folder: str, blobs: Mapping[str, Blob]) -> None:
        """Create a hard link with a readable name below `folder` for every blob. Hard links take no space.

        An object store has no links. Instead, the file `<folder>.json` maps the readable names to the blobs' objects.
        """
        if self._bucket is not None:
            objects = {name: blob_name(blob.sha256) for name, blob in blobs.items()}
            self._bucket.write(f"{folder}.json", json.dumps(objects, indent=1).encode())
            return
        paths = {name: self.root / folder / name for name in blobs}
        for name, blob in blobs.items():
            with translate_os_errors(paths[name]):
                _link(self.path(blob), paths[name], self.partial)
        for parent in {path.parent for path in paths.values()}:
            with translate_os_errors(parent):
                sync_folder(parent)

    def read_named(self, folder: str, name: str) -> bytes:
        """Return the bytes of the blob to which `link_named` gave the name `name`. Raises FileNotFoundError."""
        if self._bucket is None:
            return self.files.read(f"{folder}/{name}")
        objects = json.loads(self._bucket.read(f"{folder}.json"))
        if name not in objects:
            raise FileNotFoundError(f"{folder}/{name}")
        return self._bucket.read(objects[name])

    @contextmanager
    def scratch(self, name: str) -> Generator[Path]:
        """Create an empty folder called `name`, which is removed with its contents when the context ends."""
        if name in ("", ".", "..") or "/" in name:
            raise ValueError(f"a scratch folder's name is one path component, not {name!r}")
        parent = self.partial / temporary_name()
        folder = parent / name
        with translate_os_errors(folder):
            make_folder(self.partial)
            folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            # An orphaned worker may still be writing here; remove_stale_temporaries removes the rest later.
            shutil.rmtree(parent, ignore_errors=True)

    def remove_stale_temporaries(self) -> int:
        """Remove the temporary files of dead processes of this host. Return how many there were. See `remove_stale`."""
        with translate_os_errors(self.partial):
            return remove_stale(self.partial)

    def _file(self, blob: Blob) -> Path:
        return self.root / blob_name(blob.sha256)

    def _downloaded(self, blob: Blob, problem: str) -> Path:
        """Download the blob, check its sha256, and return its file.

        If there is no object store, or the blob's object is missing or damaged, remove what is damaged and raise
        EvidenceError. `problem`: what is wrong with the local file.
        """
        path, name = self._file(blob), blob_name(blob.sha256)
        if self._bucket is None:
            self._folder.remove(name)
            raise EvidenceError(f"{path} {problem}: {_RUN_AGAIN}")
        with translate_os_errors(path), temporary_file(self.partial) as (temporary, file):
            try:
                sha256 = self._bucket.fetch(name, file)
            except FileNotFoundError:
                raise EvidenceError(f"{self.display_path(name)} is missing: {_RUN_AGAIN}") from None
            if sha256 != blob.sha256:
                self._bucket.remove(name)
                raise EvidenceError(f"{self.display_path(name)} is damaged, its sha256 is {sha256}: {_RUN_AGAIN}")
            os.fchmod(file.fileno(), _READ_ONLY)
            commit(temporary, file, path)
        return path

    def _put(self, chunks: Iterable[bytes]) -> Blob:
        sha256 = hashlib.sha256()
        size = 0
        with translate_os_errors(self.blobs), temporary_file(self.partial) as (temporary, file):
            for chunk in chunks:
                sha256.update(chunk)
                size += file.write(chunk)
            blob = Blob(sha256=sha256.hexdigest(), size=size)
            self._keep(temporary, file, blob)
        return blob

    def _keep(self, temporary: Path, file: BinaryIO, blob: Blob) -> None:
        """Move a file that was hashed to its place, unless the store has the blob."""
        name = blob_name(blob.sha256)
        if self._bucket is not None:
            # Upload before anything can reference the blob, and from the bytes that were just hashed.
            file.flush()
            self._bucket.upload_if_absent(temporary, name, blob.size)
        # A file of another size is damaged: replace it.
        if self._folder.size(name) != blob.size:
            os.fchmod(file.fileno(), _READ_ONLY)
            commit(temporary, file, self._file(blob))


def blob_name(sha256: str) -> str:
    """Return the name of a blob's file in the store. Raises EvidenceError for text that is not a sha256."""
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise EvidenceError(f"{sha256!r} is not a sha256: the record that names it is damaged")
    return f"blobs/{sha256[:2]}/{sha256}"


def _link(blob: Path, name: Path, partial: Path) -> None:
    make_folder(name.parent)
    try:
        os.link(blob, name)
    except FileExistsError:  # an earlier attempt at the same shard created the link
        if not name.samefile(blob):
            temporary = partial / temporary_name()
            os.link(blob, temporary)
            temporary.replace(name)
    except PermissionError:  # a file system without hard links
        write_atomically(name, blob.read_bytes(), partial=partial)
