"""Tests the readable names of a run's files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qnnsweep.conf.load import load
from qnnsweep.flows.runs.files import link_files, read_evidence
from qnnsweep.tasks.errors import EnvironmentUnusable
from qnnsweep.tasks.records import DebugFiles
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.storage.manifest import referenced_blobs
from qnnsweep.tasks.storage.store import Store
from tests.sample_records import CAPTURE, LOWERED, blob, with_method

RUN = "20260101T220000Z-0000"


def put_blobs(store: Store, *records: Any) -> None:
    """Write a file of the right size for every blob that the records reference."""
    for each in {each for record in records for each in referenced_blobs(record)}:
        path = store.blobs / each.sha256[:2] / each.sha256
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(each.size))


@pytest.mark.parametrize("name", ["日本語モデル" * 10, "m/" * 100, "é" * 200, "a" * 200])
def test_the_evidence_of_a_cell_with_a_long_name_is_found_again(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path)
    put_blobs(store, LOWERED, CAPTURE)
    request = load(["model=digits_cnn", "scheme=8a8w", "soc=SM8650", f"artifacts={tmp_path}"]).cells[0].request
    long, other = (
        replace(request, model=replace(request.model, name=model_name)) for model_name in (name, f"{name[:-1]}Z")
    )
    link_files([CellResult(request=long, lowered=LOWERED, capture=CAPTURE)], RUN, store)
    evidence = read_evidence(RUN, long, store)
    assert evidence is not None
    assert (evidence.lowered, evidence.capture) == (LOWERED, CAPTURE)
    assert read_evidence(RUN, other, store) is None


def test_every_log_of_a_debug_program_has_a_name_of_its_own(tmp_path: Path) -> None:
    store = Store(tmp_path)
    logs = [
        DebugFiles(samples=(sample,), part=part, outputs=blob("2"), etdump=blob("4"), buffer=blob("5"))
        for part, sample in ((1, 0), (2, 0), (1, 1), (1, 2))
    ]
    capture = with_method(CAPTURE, debug=tuple(logs))
    put_blobs(store, LOWERED, capture)
    request = load(["model=digits_cnn", "scheme=8a8w", "soc=SM8650", f"artifacts={tmp_path}"]).cells[0].request
    link_files([CellResult(request=request, lowered=LOWERED, capture=capture)], RUN, store)
    names = {path.name for path in tmp_path.glob(f"runs/{RUN}/files/**/etdump_debug*")}
    assert names == {f"etdump_debug_{suffix}.etdp" for suffix in ("1", "2", "1_again", "1_again_2")}


def test_a_link_that_cannot_be_created_is_one_clear_line(tmp_path: Path) -> None:
    store = Store(tmp_path)
    blob = store.put_bytes(b"program")
    with pytest.raises(EnvironmentUnusable, match=r"^artifacts: cannot use .*: File name too long; no folder can be"):
        store.link_named("runs/1/files", {"x" * 256: blob})


def test_a_cell_with_a_damaged_blob_costs_the_other_cells_none_of_their_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    request = load(["model=digits_cnn", "scheme=8a8w", "soc=SM8650", f"artifacts={tmp_path}"]).cells[0].request
    put_blobs(store, LOWERED, CAPTURE)
    path = store.path(LOWERED.program)
    other = replace(LOWERED, program=store.put_bytes(b"program"))
    path.write_bytes(b"")
    requests = [replace(request, model=replace(request.model, name=name)) for name in ("bad", "good")]
    link_files(
        [
            CellResult(request=ask, lowered=lowered, capture=CAPTURE)
            for ask, lowered in zip(requests, (LOWERED, other), strict=True)
        ],
        RUN,
        store,
    )
    assert read_evidence(RUN, requests[1], store) is not None
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith(f"bad/8a8w/SM8650/qnn/local: files are left out: {path} has 0 bytes instead of ")
