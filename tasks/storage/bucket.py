"""The files of a store in an S3 object store. No other module connects to an object store.

Credentials, endpoint and region come from the usual AWS environment variables and profiles. They are neither stored nor
logged. An object appears only when its upload is complete, so there are no incomplete objects to remove.
"""
# pyarrow ships no types:
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

import hashlib
import os
import random
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa
from pyarrow import fs

from qnnsweep.conf.schema import ObjectStoreConfig
from qnnsweep.tasks.errors import EnvironmentUnusable
from qnnsweep.tasks.storage.atomic import commit, temporary_file, translate_os_errors

T = TypeVar("T")
_PIECE_BYTES = 32 << 20
"""The size of the pieces in which a large object is transferred: at most one piece is in memory."""
_CONNECT_S = 10.0
_FIRST_ATTEMPTS = 3
"""The attempts of a sweep's first request. If the endpoint is wrong, the user sees the error after some seconds."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
"""The pauses between the attempts to read. Each is twice as long as the one before, less a random part."""
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
_LASTING = re.compile(r"NO_SUCH_BUCKET|ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH")
"""The errors that another attempt cannot cure."""
_OTHERWISE = "see the store's own documentation, or set artifacts=FOLDER to a folder of this machine"


class Bucket:
    """The objects below `s3://bucket/prefix`. `copies`: the folder for local copies; it can be removed at any time.

    An instance can be pickled: each process opens its own connection at its first request.
    """

    def __init__(self, url: str, *, copies: Path, partial: Path, access: ObjectStoreConfig) -> None:
        self.url = url
        self._access = access
        self._copies = copies
        self._partial = partial

    def check_writable(self) -> None:
        """Write an object and read it back. Raises EnvironmentUnusable, with a remedy, if that fails."""
        self._upload(_TEST_NAME, pa.py_buffer(_TEST_CONTENT), attempts=min(_FIRST_ATTEMPTS, self._access.attempts))
        if self.read(_TEST_NAME) != _TEST_CONTENT:
            raise EnvironmentUnusable(f"artifacts={self.url}: an object differs when it is read back")

    def read(self, name: str) -> bytes:
        def read() -> bytes:
            with self._reading().open_input_file(self._key(name)) as file:
                return _complete(file.read(), file.size())

        return self._attempted(read)

    def write(self, name: str, data: bytes) -> None:
        self._upload(name, pa.py_buffer(data))

    def size(self, name: str) -> int | None:
        def size() -> int:
            with self._reading().open_input_file(self._key(name)) as file:
                return file.size()

        try:
            return self._attempted(size)
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        selector = fs.FileSelector(self._key(folder), recursive=True, allow_not_found=True)
        infos = self._attempted(lambda: self._reading().get_file_info(selector))
        prefix = len(self._key(""))
        return sorted(info.path[prefix:] for info in infos if info.type == fs.FileType.File)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._attempted(lambda: self._reading().delete_file(self._key(name)))

    def remove_all(self, folder: str) -> None:
        for name in self.names(folder):
            self.remove(name)

    def local(self, name: str) -> Path:
        """Return the path of a local copy of an object. Download the object if no copy has its size and time."""
        (info,) = self._attempted(lambda: self._reading().get_file_info([self._key(name)]))
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
        """Download an object into the open file `into` and return the sha256 of its bytes. Raises FileNotFoundError.

        If a piece cannot be read, only this piece is read again.
        """
        sha256 = hashlib.sha256()
        with self._attempted(lambda: self._reading().open_input_file(self._key(name))) as file:
            size = self._attempted(file.size)
            for start in range(0, size, _PIECE_BYTES):
                length = min(_PIECE_BYTES, size - start)
                read = partial(file.read_at, length, start)
                piece = self._attempted(lambda read=read, length=length: _complete(read(), length))
                sha256.update(piece)
                into.write(piece)
        return sha256.hexdigest()

    def _key(self, name: str) -> str:
        return f"{self.url.removeprefix('s3://')}/{name}"

    def _upload(self, name: str, data: Any, *, attempts: int | None = None) -> None:
        """Upload an object. pyarrow makes the attempts, by default as many as are configured."""
        connection = _connected(self._access.timeout_s, attempts or self._access.attempts)
        with self._errors_translated(), connection.open_output_stream(self._key(name)) as stream:
            for start in range(0, data.size, _PIECE_BYTES):
                stream.write(data.slice(start, min(_PIECE_BYTES, data.size - start)))
                if data.size > _PIECE_BYTES:
                    stream.flush()

    def _reading(self) -> Any:
        """Return a connection that makes one attempt per request, for `_attempted`."""
        return _connected(self._access.timeout_s, 1)

    def _attempted(self, request: Callable[[], T]) -> T:
        """Return the result of a request that may be repeated. pyarrow itself does not repeat every kind of request."""
        pause_s = _FIRST_PAUSE_S
        for attempts_left in reversed(range(self._access.attempts)):
            try:
                with self._errors_translated():
                    return request()
            except EnvironmentUnusable as error:
                if not attempts_left or _LASTING.search(error.problem):
                    raise
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - not for security
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise AssertionError("the last attempt returns or raises")

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


def _complete(data: bytes, size: int) -> bytes:
    """Return `data`. Raises OSError, as for a lost connection, if it does not have `size` bytes."""
    if len(data) != size:
        raise OSError(f"AWS Error NETWORK_CONNECTION: an answer ended after {len(data)} of {size} bytes")
    return data


def _connected(timeout_s: float, attempts: int) -> Any:
    # A forked worker must not use its parent's connections.
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return _connection(os.getpid(), endpoint, timeout_s, attempts)


@cache
def _connection(_process: int, endpoint: str | None, timeout_s: float, attempts: int) -> Any:
    return fs.S3FileSystem(
        endpoint_override=endpoint,
        connect_timeout=min(_CONNECT_S, timeout_s),
        request_timeout=timeout_s,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=attempts),
        # With this, a small object needs only one request.
        allow_delayed_open=True,
        # Without this, a failed part leaves the earlier parts under the final name.
        background_writes=True,
    )
