from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from qnnsweep.tasks.storage.store import Store
from tests.object_store import ObjectStore, serve_object_store

StoreOf = Callable[[str], Store]
"""Opens the same store as a machine of the given name. With an object store, each machine has its own local folder."""


def writable(store: Store) -> Store:
    store.check_writable()
    return store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return writable(Store(tmp_path / "artifacts"))


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with serve_object_store(tmp_path_factory.mktemp("moto")) as running:
        running.create_bucket("sweeps")
        yield running


@pytest.fixture
def bucket(object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreOf:
    """A new prefix in an object store."""
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    url = f"s3://sweeps/{uuid4().hex}/night.ly"
    return lambda machine: writable(Store(tmp_path / machine, url))


@pytest.fixture(params=["folder", "bucket"])
def store_of(request: pytest.FixtureRequest, tmp_path: Path) -> StoreOf:
    """A store in a folder or in an object store."""
    if request.param == "bucket":
        return request.getfixturevalue("bucket")
    return lambda _: writable(Store(tmp_path / "artifacts"))
