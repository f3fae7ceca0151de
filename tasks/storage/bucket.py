"""Whole files of one artifacts place in an object store that speaks S3; the only module that talks to one.

Who may use it, where it is and in which region say the usual AWS variables and profiles. They are neither kept nor
told to anyone. An object appears when its upload is complete: there is nothing half-written to sweep away.
"""
# pyarrow ships no types:
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow import fs

from tasks.errors import EnvironmentUnusable
from tasks.storage.atomic import commit, temporary_file, translate_os_errors

_PIECE_BYTES = 32 << 20
"""What is in memory of a large object at a time."""
_CONNECT_S = 10.0
_TRIAL = "artifacts.txt"
_WHOSE = b"The artifacts of qnnsweep: blobs, results, tables and runs. Its docs/storage.md says what is what.\n"

_FOR_CREDENTIALS = "see that AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, may read, write and list it"
_ADVICE = {
    "NO_SUCH_BUCKET": "make the bucket, or correct its name",
    "ACCESS_DENIED": _FOR_CREDENTIALS,
    "INVALID_ACCESS_KEY_ID": _FOR_CREDENTIALS,
    "SIGNATURE_DOES_NOT_MATCH": _FOR_CREDENTIALS,
    "NETWORK_CONNECTION": "see that AWS_ENDPOINT_URL (for a store that is not Amazon's) and AWS_REGION are right",
}
_OTHERWISE = "see the store's own documentation, or set artifacts=FOLDER to a folder of this machine"


class Bucket:
    """Objects below `s3://bucket/prefix`; `copies` is where `local` keeps its files, and can go at any time.

    A plain value: each process connects when it first asks for something.
    """

    def __init__(self, url: str, *, copies: Path, partial: Path) -> None:
        self.url = url
        self._copies = copies
        self._partial = partial

    def check_writable(self) -> None:
        """Write an object and read it back. Raises EnvironmentUnusable, with what to do, if that fails."""
        self.write(_TRIAL, _WHOSE)
        if self.read(_TRIAL) != _WHOSE:
            raise EnvironmentUnusable(f"artifacts={self.url}: what is written there comes back as something else")

    def read(self, name: str) -> bytes:
        with self._reached(), _connected().open_input_stream(self._key(name)) as stream:
            return stream.readall()

    def write(self, name: str, data: bytes) -> None:
        self._upload(name, pa.py_buffer(data))

    def size(self, name: str) -> int | None:
        try:
            with self._reached(), _connected().open_input_file(self._key(name)) as file:
                return file.size()
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        return sorted(self._listed(folder))

    def remove(self, name: str) -> None:
        try:
            with self._reached():
                _connected().delete_file(self._key(name))
        except FileNotFoundError:
            return

    def remove_all(self, folder: str) -> None:
        for name in self.names(folder):
            self.remove(name)

    def local(self, name: str) -> Path:
        with self._reached():
            (found,) = _connected().get_file_info([self._key(name)])
        return self._copied(name, found)

    def keep(self, file: Path, name: str, size: int) -> None:
        """Upload the file unless an object of that name and size is there. Memory holds a piece of it at a time."""
        if self.size(name) != size:
            with pa.memory_map(str(file)) as mapped:
                self._upload(name, mapped.read_buffer())

    def fetch(self, name: str, into: BinaryIO) -> str:
        """Download into a file and say the sha256 of what came. Raises FileNotFoundError."""
        sha256 = hashlib.sha256()
        with self._reached():
            stream = _connected().open_input_stream(self._key(name))
        with stream:
            while True:
                with self._reached():
                    piece = stream.read(_PIECE_BYTES)
                if not piece:
                    return sha256.hexdigest()
                sha256.update(piece)
                into.write(piece)

    def _key(self, name: str) -> str:
        return f"{self.url.removeprefix('s3://')}/{name}"

    def _listed(self, folder: str) -> dict[str, Any]:
        """Every name below the folder to its size and time."""
        with self._reached():
            found = _connected().get_file_info(fs.FileSelector(self._key(folder), recursive=True, allow_not_found=True))
        above = len(self._key(""))
        return {each.path[above:]: each for each in found if each.type == fs.FileType.File}

    def _copied(self, name: str, found: Any) -> Path:
        """The local copy, fetched unless it has the object's size and time."""
        if found.type != fs.FileType.File:
            raise FileNotFoundError(f"{self.url}/{name}")
        path = self._copies / name
        with translate_os_errors(path):
            here = path.stat() if path.is_file() else None
            if here is None or (here.st_size, here.st_mtime_ns) != (found.size, found.mtime_ns):
                with temporary_file(self._partial) as (partial, file):
                    self.fetch(name, file)
                    file.flush()
                    os.utime(partial, ns=(found.mtime_ns, found.mtime_ns))
                    commit(partial, file, path)
        return path

    def _upload(self, name: str, data: Any) -> None:
        with self._reached(), _connected().open_output_stream(self._key(name)) as stream:
            for start in range(0, data.size, _PIECE_BYTES):
                stream.write(data.slice(start, min(_PIECE_BYTES, data.size - start)))
                if data.size > _PIECE_BYTES:
                    stream.flush()

    @contextmanager
    def _reached(self) -> Generator[None]:
        """Raise EnvironmentUnusable for whatever the object store refuses, but for an object that is not there."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            why = re.sub(r" \(Request ID: [^)]*\)", "", " ".join(str(error).split()))
            code = re.search(r"AWS Error ([A-Z_]+)", why)
            advice = _ADVICE.get(code[1] if code else "", _OTHERWISE)
            raise EnvironmentUnusable(f"artifacts={self.url}: {why}", remedy=advice) from error


def _connected() -> Any:
    # A forked worker must not speak over its parent's connections.
    return _connection(os.getpid(), os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"))


@cache
def _connection(_process: int, endpoint: str | None) -> Any:
    return fs.S3FileSystem(
        endpoint_override=endpoint,
        connect_timeout=_CONNECT_S,
        # A small object is one request.
        allow_delayed_open=True,
        # Without it a part that fails leaves the parts before it under the final name.
        background_writes=True,
    )
