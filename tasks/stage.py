"""How a stage becomes a Prefect task whose cached results are Parquet files; the only Prefect in tasks/.

A result is found again by the digest of what made it: the stage and its version, the toolchain where one is used, and
every positional argument, or what of them the stage says it reads. Keyword-only arguments are resources and count for
nothing.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import logging
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from prefect import Task
from prefect.cache_policies import NO_CACHE, CachePolicy
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.filesystems import WritableFileSystem
from prefect.serializers import Serializer
from pydantic import PrivateAttr

from tasks.errors import EvidenceError
from tasks.records import Blob
from tasks.storage.codec import decode, encode
from tasks.storage.digest import digest
from tasks.storage.holdings import named_blobs
from tasks.storage.store import Store

P = ParamSpec("P")
R = TypeVar("R")

RECORDS, _KEYS = "results/records", "results/keys"
"""Folders of the store: results, by the names that `kept_as` says, and which of them there are."""

OnChange = Callable[[str], None]
"""Told `running`, `done`, `reused` or `failed` as a task run gets there."""


def stage(
    function: Callable[P, R], *, version: int, cached: bool = True, matter: Callable[..., object] | None = None
) -> Task[P, R]:
    """The Prefect task of a stage. Raise `version` when the function, or what it calls, computes something else.

    `matter`: of the positional arguments what the stage's result depends on; without it, all of them.
    """
    return Task(
        fn=function,
        name=function.__name__,
        version=str(version),
        persist_result=cached,
        cache_policy=_RecordKey(stage=function.__name__, version=version, matter=matter) if cached else NO_CACHE,
        result_serializer=_RecordSerializer() if cached else None,
    )


def bound(task: Task[P, R], name: str, *, store: Store, on_change: OnChange, anew: bool = False) -> Task[P, R]:
    """The task for one sweep: its run's name, where its results are kept, and who is told how it goes.

    `anew`: look for no earlier result, and keep this one for who asks later.
    """

    def started(_task: object, _run: TaskRun, _state: State) -> None:
        on_change("running")

    def completed(_task: object, _run: TaskRun, state: State) -> None:
        on_change("reused" if state.name == "Cached" else "done")

    def failed(_task: object, _run: TaskRun, _state: State) -> None:
        on_change("failed")

    # Prefect formats the name with the arguments.
    run_name = name.replace("{", "{{").replace("}", "}}")
    # Not `with_options`, which reads and parses the function's source again.
    named = copy.copy(task)
    named.task_run_name = run_name
    named.on_running_hooks, named.on_completion_hooks, named.on_failure_hooks = [started], [completed], [failed]
    if anew:
        named.refresh_cache = True
    if isinstance(task.cache_policy, _RecordKey):
        named.cache_policy = task.cache_policy.configure(key_storage=_kept(_KeptKeys, store))
        # Task's constructor wants a block that a server knows; what is named by the store needs none.
        named.result_storage = _kept(_KeptRecords, store)
    return named


@lru_cache(maxsize=8)
def _kept(kind: type[_KeptRecords | _KeptKeys], store: Store) -> _WholeFiles:
    """One block for all tasks of a sweep, which has a store of its own."""
    block = kind()
    block._store = store
    return block


def is_reused(state: State) -> bool:
    return state.name == "Cached"


def kept_as(state: State) -> str | None:
    """The name below `RECORDS` of the result that a task run found or made; None where it keeps none."""
    key = getattr(getattr(state.data, "metadata", None), "storage_key", None)
    return None if key is None else Path(key).name  # a whole path, in folders of before they could be moved


class _HooksAside(logging.Filter):
    """Keeps Prefect's four lines a task about our hooks out of its logs: they bury what happened."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(("Running hook ", "Hook "))


logging.getLogger("prefect.task_runs").addFilter(_HooksAside())


@dataclasses.dataclass
class _RecordKey(CachePolicy):
    """The digest of what a stage was given.

    Prefect would only log what is raised here, and run uncached: whoever submits takes the digest of all matter first.
    """

    stage: str = ""
    version: int = 0
    matter: Callable[..., object] | None = None

    def compute_key(
        self,
        task_ctx: TaskRunContext,
        inputs: dict[str, Any],
        flow_parameters: dict[str, Any],  # noqa: ARG002 - Prefect passes it
        **kwargs: Any,  # noqa: ARG002
    ) -> str:
        parameters = inspect.signature(task_ctx.task.fn).parameters.values()
        given = [inputs[each.name] for each in parameters if each.kind is not each.KEYWORD_ONLY]
        matter = given if self.matter is None else self.matter(*given)
        toolchain = getattr(inputs.get("children"), "identity", None)
        return f"{self.stage}-{digest([self.stage, self.version, toolchain, matter])}.parquet"


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    """A kept result that is whole: where it lies, its key, its bytes and the record that they are."""

    place: str
    key: bytes
    data: bytes
    record: object


class _Last(threading.local):
    """What this thread found last: Prefect asks whether there is a result, then for its key, then for its bytes."""

    found: _Found | None = None


_last = _Last()


class _RecordSerializer(Serializer):  # its parametrized form cannot be subclassed
    """Records as Parquet. Nothing that a result file says can make anything but a record."""

    type: str = "qnnsweep-record"

    def dumps(self, obj: Any) -> bytes:
        return encode(obj)

    def loads(self, blob: bytes) -> Any:
        found, _last.found = _last.found, None
        return found.record if found is not None and found.data == blob else decode(blob)


class _WholeFiles(WritableFileSystem):
    """A folder of the store's place, in which files appear when they are complete."""

    _block_type_name = "qnnsweep results"
    folder: str
    _store: Store = PrivateAttr()

    def _resolve_path(self, path: str) -> None:
        """For Prefect: a name says nothing of where its folder is. It may be moved, or found by other machines."""

    def read_path(self, path: str, **_: Any) -> bytes:  # type: ignore[override]
        return self._store.files.read(self._name(path))

    async def aread_path(self, path: str) -> bytes:
        return self.read_path(path)

    def write_path(self, path: str, content: bytes, **_: Any) -> str:  # type: ignore[override]
        self._store.files.write(self._name(path), content)
        return path

    async def awrite_path(self, path: str, content: bytes) -> str:
        return self.write_path(path, content)

    def _name(self, path: str) -> str:
        return f"{self.folder}/{Path(path).name}"

    def _found(self, path: str) -> _Found | None:
        """What this thread found of that name, if that was its last look."""
        found = _last.found
        return found if found is not None and found.place == self._store.shown(Path(path).name) else None


class _KeptRecords(_WholeFiles):
    """The results themselves."""

    _block_type_name = "qnnsweep result records"
    folder: str = RECORDS

    def read_path(self, path: str, **more: Any) -> bytes:  # type: ignore[override]
        found = self._found(path)
        return super().read_path(path, **more) if found is None else found.data


class _KeptKeys(_WholeFiles):
    """Which results there are. One that cannot be read, or whose blobs are gone, is none: it is computed again."""

    _block_type_name = "qnnsweep result keys"
    folder: str = _KEYS
    _there: set[Blob] = PrivateAttr(default_factory=set)
    """Blobs that this sweep has seen: many results name the same, and what a sweep uses stays."""

    def read_path(self, path: str, **_: Any) -> bytes:  # type: ignore[override]
        found = self._found(path) or self._whole(path)
        _last.found = found
        return found.key

    def _whole(self, path: str) -> _Found:
        store, name = self._store, Path(path).name
        key, data = (store.files.read(f"{folder}/{name}") for folder in (self.folder, RECORDS))
        record = decode(data)
        for blob in {*named_blobs(record)}:
            if blob not in self._there and not store.has(blob):
                raise EvidenceError(f"{path} names the blob {blob.sha256}, which is gone")
            self._there.add(blob)
        return _Found(store.shown(name), key, data, record)
