"""The cached results of stages. They are Parquet files in the store. Prefect accesses them through its storage blocks.

Prefect reads a result in three steps, each of which would read, decode and check the same files again. Each thread
therefore keeps the result of the first step until the last step:

    Prefect's engine                 this module                            store
    ResultStore.exists(key)    ->    _CacheKeyStorage.read_path      ->     results/records/<key>, and whether
                                       decode, check blobs                  results/keys/<key> and all blobs exist
    ResultStore.read(key)      ->    _CacheKeyStorage.read_path      ->     nothing: the metadata in memory
                                     _CacheRecordStorage.read_path   ->     nothing: the bytes in memory
      deserialize              ->    RecordSerializer.loads                 the record in memory, which is then dropped

If a result is missing, damaged or incomplete, the first step raises an error. Prefect interprets the error as "no
result": the stage computes the result again and writes both files.

Prefect would read the file and use the serializer that its metadata of a result name. The metadata in the store are
therefore never used: whoever can write to the store could name another serializer, which runs code. For the same
reason, a stage whose result contains code has a function `accepts`, which compares this code with the stage's code.
"""

import dataclasses
import json
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from prefect.filesystems import WritableFileSystem
from prefect.serializers import Serializer
from pydantic import PrivateAttr

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import Blob
from qnnsweep.tasks.storage.codec import decode, encode
from qnnsweep.tasks.storage.manifest import KEYS, RECORDS, referenced_blobs
from qnnsweep.tasks.storage.store import Store

RESULT_SUFFIX = ".parquet"
"""The end of the name of every result."""
Accepts = Callable[[Any], bool]
"""Returns whether a stage can have computed this result."""


@dataclasses.dataclass(frozen=True, slots=True)
class _CachedResult:
    """A complete cached result: its store and name, Prefect's metadata, the encoded record, and the record."""

    store: Store
    name: str
    metadata: bytes
    data: bytes
    record: object


class _LastRead(threading.local):
    """The result that this thread read last, for the later steps of the same look-up."""

    result: _CachedResult | None = None


_last_read = _LastRead()


class RecordSerializer(Serializer):  # `Serializer[Any]` cannot be subclassed
    """The serializer that stores records as Parquet. It loads nothing but records."""

    type: str = "qnnsweep-record"

    def dumps(self, obj: Any) -> bytes:
        return b"" if isinstance(obj, BaseException) else encode(obj)

    def loads(self, blob: bytes) -> Any:
        result, _last_read.result = _last_read.result, None
        return result.record if result is not None and result.data == blob else decode(blob)


class _AtomicFiles(WritableFileSystem):
    """A storage block for a folder of the store. A file appears in the folder only when the file is complete."""

    folder: str
    _store: Store = PrivateAttr()

    def _resolve_path(self, path: str) -> None:
        """Return None, so that Prefect stores names without the folder. The folder can then be moved or remounted."""

    def read_path(self, path: str, **_: Any) -> bytes:  # type: ignore[override]
        return self._store.files.read(self._file(path))

    async def aread_path(self, path: str) -> bytes:
        return self.read_path(path)

    def write_path(self, path: str, content: bytes, **_: Any) -> str:  # type: ignore[override]
        if Path(path).suffix != RESULT_SUFFIX:  # the error of a task, which Prefect would store under a random name
            return path
        self._store.files.write(self._file(path), content)
        return path

    async def awrite_path(self, path: str, content: bytes) -> str:
        return self.write_path(path, content)

    def _file(self, path: str) -> str:
        return f"{self.folder}/{Path(path).name}"

    def _in_memory(self, path: str) -> _CachedResult | None:
        """Return the result that `path` names if it is the last result that this thread has read; otherwise None."""
        result = _last_read.result
        return result if result and (result.store, result.name) == (self._store, Path(path).name) else None


class _CacheRecordStorage(_AtomicFiles):
    """The storage block of the results themselves."""

    _block_type_name = "qnnsweep result records"
    folder: str = RECORDS

    def read_path(self, path: str, **more: Any) -> bytes:  # type: ignore[override]
        result = self._in_memory(path)
        return super().read_path(path, **more) if result is None else result.data


class _CacheKeyStorage(_AtomicFiles):
    """The storage block of Prefect's metadata. A result exists only if it can be read and all its blobs exist."""

    _block_type_name = "qnnsweep result keys"
    folder: str = KEYS
    _accepts: Accepts | None = PrivateAttr(default=None)
    _checked_blobs: set[Blob] = PrivateAttr(default_factory=set)
    """Blobs that were found to exist. They are not checked again: no blob is removed while a sweep uses the store."""

    def read_path(self, path: str, **_: Any) -> bytes:  # type: ignore[override]
        result = self._in_memory(path) or self._read(path)
        _last_read.result = result
        return result.metadata

    def _read(self, path: str) -> _CachedResult:
        store, name = self._store, Path(path).name
        if store.files.size(self._file(name)) is None:
            raise FileNotFoundError(self._file(name))
        data = store.files.read(f"{RECORDS}/{name}")
        record = decode(data)
        if self._accepts is not None and not self._accepts(record):
            raise EvidenceError(f"{path} is not the result of this stage")
        for blob in {*referenced_blobs(record)}:
            if blob not in self._checked_blobs and not store.has(blob):
                raise EvidenceError(f"{path} references the blob {blob.sha256}, which does not exist")
            self._checked_blobs.add(blob)
        return _CachedResult(store, name, _metadata(name), data, record)


def read_result(store: Store, name: str, accepts: Accepts | None) -> object | None:
    """Return the cached result with this name; None if it is missing, damaged or incomplete."""
    try:
        return storage_blocks(store, accepts)[0]._read(name).record
    except (FileNotFoundError, EvidenceError):
        return None


def _metadata(name: str) -> bytes:
    """Return Prefect's metadata of the result with this name."""
    return json.dumps({"storage_key": name, "serializer": RecordSerializer().model_dump(mode="json")}).encode()


@lru_cache(maxsize=16)
def storage_blocks(store: Store, accepts: Accepts | None = None) -> tuple[_CacheKeyStorage, _CacheRecordStorage]:
    """Return the two storage blocks of a sweep's tasks with this `accepts`. Each sweep has its own `Store` object."""
    blocks = keys, _ = _CacheKeyStorage(), _CacheRecordStorage()
    keys._accepts = accepts
    for block in blocks:
        block._store = store
    return blocks
