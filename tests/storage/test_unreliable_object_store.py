"""An object store that fails, is late or cuts its answers by chance costs time, but no blob and no sweep."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from qnnsweep.conf.schema import ObjectStoreConfig
from qnnsweep.tasks.errors import EnvironmentUnusable
from qnnsweep.tasks.storage.store import Store
from tests.object_store import Fault, ObjectStore, serve_proxy
from tests.storage.conftest import StoreOf

pytestmark = pytest.mark.slow

BLOBS = 12
FAULTS = {
    "503": (503, 0.2), "500": (500, 0.15), "reset": (Fault.RESET, 0.1), "cut": (Fault.CUT, 0.2),
    "late": (Fault.LATE, 0.05),
}  # fmt: skip


@pytest.mark.parametrize(("fault", "share"), FAULTS.values(), ids=FAULTS)
def test_every_blob_is_written_and_read_although_requests_fail_by_chance(
    object_store: ObjectStore, bucket: StoreOf, monkeypatch: pytest.MonkeyPatch, fault: int | Fault, share: float
) -> None:
    chance, faults = random.Random(5), [0]

    def fail(method: str, path: str) -> int | Fault | None:
        if chance.random() >= share:
            return None
        faults[0] += 1
        return fault

    contents = [random.Random(number).randbytes((0, 10, 5000, 300_000)[number % 4]) for number in range(BLOBS)]
    writer, reader = bucket("writer"), bucket("reader")
    with serve_proxy(object_store, fail) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        blobs = [writer.put_bytes(content) for content in contents]
        assert [reader.has(blob) for blob in blobs] == [True] * BLOBS
        assert [reader.read(blob) for blob in blobs] == contents
        assert len(reader.files.names("blobs")) == len(set(blobs))
        assert faults[0] > 0
    assert list(reader.partial.iterdir()) == list(writer.partial.iterdir()) == []


def test_a_download_is_continued_and_not_started_again(
    object_store: ObjectStore, bucket: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = random.Random(0).randbytes(70 << 20)
    blob = bucket("writer").put_bytes(content)
    downloads: list[str] = []

    def cut_second(method: str, path: str) -> Fault | None:
        if method != "GET" or blob.sha256 not in path:
            return None
        downloads.append(path)
        return Fault.CUT if len(downloads) == 2 else None

    reader = bucket("reader")
    with serve_proxy(object_store, cut_second) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        assert reader.read(blob) == content
    assert len(downloads) == 4  # three pieces, of which the second is downloaded twice


def test_the_timeout_and_the_attempts_can_be_configured(
    object_store: ObjectStore, bucket: StoreOf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store, requests = bucket("one"), []
    blob = store.put_bytes(b"evidence")

    def late(method: str, path: str) -> Fault:
        requests.append(method)
        return Fault.LATE

    hasty = Store(tmp_path / "hasty", store.url, ObjectStoreConfig(timeout_s=1.0, attempts=2))
    with serve_proxy(object_store, late) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(EnvironmentUnusable, match="NETWORK_CONNECTION"):
            hasty.has(blob)
        assert requests == ["HEAD", "HEAD"]


def test_a_refusal_is_final(object_store: ObjectStore, bucket: StoreOf, monkeypatch: pytest.MonkeyPatch) -> None:
    store, requests = bucket("one"), []
    blob = store.put_bytes(b"evidence")
    reader = bucket("reader")

    def refuse(method: str, path: str) -> int:
        requests.append(method)
        return 403

    with serve_proxy(object_store, refuse) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(EnvironmentUnusable, match="ACCESS_DENIED"):
            reader.has(blob)
    assert requests == ["HEAD"]
