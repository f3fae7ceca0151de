"""The files of a store in an S3 object store. No other module connects to an object store.

Credentials, endpoint and region come from the usual AWS environment variables and profiles. They are neither stored nor
logged. An object appears only when its upload is complete, so there are no incomplete objects to remove.
"""
# pyarrow ships no types:
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

import hashlib
import os
import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow import fs

from tasks.errors import EnvironmentUnusable
from tasks.storage.atomic import commit, temporary_file, translate_os_errors

_PIECE_BYTES = 32 << 20
"""The size of the pieces in which a large object is transferred: at most one piece is in memory."""
_CONNECT_S = 10.0
_TEST_NAME = "artifacts.txt"
_TEST_CONTENT = b"The artifacts of qnnsweep: blobs, results, tables and runs. docs/storage.md describes them.\n"

_FOR_CREDENTIALS = (
    "check that AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, may read, write and list the bucket"
)
_ADVICE = {
    "NO_SUCH_BUCKET": "create the bucket, or correct its name",
    "ACCESS_DENIED": _FOR_CREDENTIALS,
    "INVALID_ACCESS_KEY_ID": _FOR_CREDENTIALS,
    "SIGNATURE_DOES_NOT_MATCH": _FOR_CREDENTIALS,
    "NETWORK_CONNECTION": "check that AWS_ENDPOINT_URL (for a store that is not Amazon's) and AWS_REGION are right",
}
_OTHERWISE = "see the store's own documentation, or set artifacts=FOLDER to a folder of this machine"


class Bucket:
    """The objects below `s3://bucket/prefix`. `copies`: the folder for local copies; it can be removed at any time.

    An instance can be pickled: each process opens its own connection at its first request.
    """

    def __init__(self, url: str, *, copies: Path, partial: Path) -> None:
        self.url = url
        self._copies = copies
        self._partial = partial

    def check_writable(self) -> None:
        """Write an object and read it back. Raises EnvironmentUnusable, with a remedy, if that fails."""
        self.write(_TEST_NAME, _TEST_CONTENT)
        if self.read(_TEST_NAME) != _TEST_CONTENT:
            raise EnvironmentUnusable(f"artifacts={self.url}: an object differs when it is read back")

    def read(self, name: str) -> bytes:
        with self._errors_translated(), _connected().open_input_stream(self._key(name)) as stream:
            return stream.readall()

    def write(self, name: str, data: bytes) -> None:
        self._upload(name, pa.py_buffer(data))

    def size(self, name: str) -> int | None:
        try:
            with self._errors_translated(), _connected().open_input_file(self._key(name)) as file:
                return file.size()
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        with self._errors_translated():
            infos = _connected().get_file_info(fs.FileSelector(self._key(folder), recursive=True, allow_not_found=True))
        prefix = len(self._key(""))
        return sorted(info.path[prefix:] for info in infos if info.type == fs.FileType.File)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError), self._errors_translated():
            _connected().delete_file(self._key(name))

    def remove_all(self, folder: str) -> None:
        for name in self.names(folder):
            self.remove(name)

    def local(self, name: str) -> Path:
        """Return the path of a local copy of an object. Download the object if no copy has its size and time."""
        with self._errors_translated():
            (info,) = _connected().get_file_info([self._key(name)])
        if info.type != fs.FileType.File:
            raise FileNotFoundError(f"{self.url}/{name}")
        path = self._copies / name
        with translate_os_errors(path):
            stat = path.stat() if path.is_file() else None
            if stat is None or (stat.st_size, stat.st_mtime_ns) != (info.size, info.mtime_ns):
                with temporary_file(self._partial) as (temporary, file):
                    self.fetch(name, file)
                    file.flush()
                    os.utime(temporary, ns=(info.mtime_ns, info.mtime_ns))
                    commit(temporary, file, path)
        return path

    def upload_if_absent(self, file: Path, name: str, size: int) -> None:
        """Upload the file in pieces unless there is an object of that name and size. At most one piece is in memory."""
        if self.size(name) != size:
            with pa.memory_map(str(file)) as contents:
                self._upload(name, contents.read_buffer())

    def fetch(self, name: str, into: BinaryIO) -> str:
        """Download an object into the open file `into` and return the sha256 of its bytes. Raises FileNotFoundError."""
        sha256 = hashlib.sha256()
        with self._errors_translated():
            stream = _connected().open_input_stream(self._key(name))
        with stream:
            while True:
                with self._errors_translated():
                    piece = stream.read(_PIECE_BYTES)
                if not piece:
                    return sha256.hexdigest()
                sha256.update(piece)
                into.write(piece)

    def _key(self, name: str) -> str:
        return f"{self.url.removeprefix('s3://')}/{name}"

    def _upload(self, name: str, data: Any) -> None:
        with self._errors_translated(), _connected().open_output_stream(self._key(name)) as stream:
            for start in range(0, data.size, _PIECE_BYTES):
                stream.write(data.slice(start, min(_PIECE_BYTES, data.size - start)))
                if data.size > _PIECE_BYTES:
                    stream.flush()

    @contextmanager
    def _errors_translated(self) -> Generator[None]:
        """Raise EnvironmentUnusable for every error of the object store except a missing object."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            reason = re.sub(r" \(Request ID: [^)]*\)", "", " ".join(str(error).split()))
            code = re.search(r"AWS Error ([A-Z_]+)", reason)
            advice = _ADVICE.get(code[1] if code else "", _OTHERWISE)
            raise EnvironmentUnusable(f"artifacts={self.url}: {reason}", remedy=advice) from error


def _connected() -> Any:
    # A forked worker must not use its parent's connections.
    return _connection(os.getpid(), os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"))


@cache
def _connection(_process: int, endpoint: str | None) -> Any:
    return fs.S3FileSystem(
        endpoint_override=endpoint,
        connect_timeout=_CONNECT_S,
        # With this, a small object needs only one request.
        allow_delayed_open=True,
        # Without this, a failed part leaves the earlier parts under the final name.
        background_writes=True,
    )
