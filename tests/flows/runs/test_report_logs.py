"""The report of a run has the end of each log, whatever the size of the logs is and whether they are intact."""

from __future__ import annotations

import base64
import gzip
import json
import re
import tracemalloc
from pathlib import Path

from qnnsweep.flows.runs import results
from qnnsweep.tasks.records import Blob
from qnnsweep.tasks.storage.store import Store
from tests.sample_tables import RUN, nightly, sweep


def report_of(store: Store, log: Blob) -> str:
    """Write a run whose cells have this log, and return its report."""
    cells = [row | {"log": log.sha256} for row in nightly()[:2]]
    return results.write(RUN, sweep(cells), store, None).page.read_text()


def log_of(html: str) -> str | None:
    """Return the log of the first cell from the compressed data of a report, if the report has it."""
    data = re.search(r'<script type="application/gzip"[^>]*>([^<]*)<', html)
    assert data is not None
    log: str | None = json.loads(gzip.decompress(base64.b64decode(data[1])))["cells"][0].get("log")
    return log


def test_a_large_log_needs_little_memory_and_the_report_has_its_end(tmp_path: Path) -> None:
    store = Store(tmp_path)
    log = store.put_bytes(b"calibrated layer\n" * (4 << 20) + b"the last line\n")
    report_of(store, store.put_bytes(b"what the first report needs"))
    tracemalloc.start()
    try:
        html = report_of(store, log)
        assert tracemalloc.get_traced_memory()[1] < log.size / 2
    finally:
        tracemalloc.stop()
    end = log_of(html)
    assert end is not None
    assert end.endswith("calibrated layer\nthe last line\n")
    assert "The part before this is left out" in html


def test_a_whole_log_is_shown_without_a_remark(tmp_path: Path) -> None:
    store = Store(tmp_path)
    html = report_of(store, store.put_bytes("größer\n".encode() * 1000))
    assert log_of(html) == "größer\n" * 1000
    assert "The part before this is left out" not in html


def test_a_damaged_log_is_left_out_of_the_report(tmp_path: Path) -> None:
    store = Store(tmp_path)
    log = store.put_bytes(b"text of the log\n")
    path = store.path(log)
    path.chmod(0o644)
    path.write_bytes(b"TEXT of the log\n")
    html = report_of(store, log)
    assert log_of(html) is None
    assert log.sha256 in html
