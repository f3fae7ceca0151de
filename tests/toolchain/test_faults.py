"""benchmarks/faults.py: what it counts as survived, its store that fails and its clock, and a few of its faults."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import IncompleteRead, RemoteDisconnected
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from tests.flows.kill_and_rerun import Tables, comparable_rows
from tests.sample_tables import nightly, sweep

import fault_kinds  # isort: skip
import fault_sweep  # isort: skip
import faults  # isort: skip
import faulty_store  # isort: skip

pytestmark = pytest.mark.toolchain

KINDS = ["flipped bit", "truncated file", "killed process"]


@pytest.fixture
def rows() -> dict[str, list[dict[str, object]]]:
    return sweep(nightly()[3:5], count=8)  # both passed


def judged(
    rows: dict[str, list[dict[str, object]]], expected: Tables, folder: Path, exit_code: int = 0
) -> fault_sweep.Judgement:
    """What a run says that has written these rows."""
    run_id = str(rows["cells"][0]["run_id"])
    store = Store(folder / "artifacts")
    for table, of_table in rows.items():
        tables.write(store, run_id, table, of_table)
    ran = fault_sweep.Ran(exit_code=exit_code, out=f'{{"run_id": "{run_id}"}}\n', err="", seconds=1.0)
    return fault_sweep.judge(ran, new_sweep(folder), expected)


def new_sweep(folder: Path) -> fault_sweep.Sweep:
    return fault_sweep.Sweep(warm=None, folder=folder)


def comparable(rows: dict[str, list[dict[str, object]]]) -> Tables:
    return {name: comparable_rows(name, rows[name]) for name in set(tables.TABLES) - {"work", "trends"}}


def test_equal_rows_are_equal_and_another_value_of_a_cell_that_passed_is_lost(
    rows: dict[str, list[dict[str, object]]], tmp_path: Path
) -> None:
    expected = comparable(rows)
    assert judged(rows, expected, tmp_path).word == "equal"
    assert judged(rows, expected, tmp_path, exit_code=-6).word == "lost"
    rows["outputs"][3]["snr_db"] = 99.0
    judgement = judged(rows, expected, tmp_path)
    assert judgement.word == "lost"
    assert judgement.text.startswith("other rows of outputs: extra")


def test_a_failed_cell_reports_what_is_missing_and_may_lack_rows_but_may_have_no_other_values(
    rows: dict[str, list[dict[str, object]]], tmp_path: Path
) -> None:
    expected = comparable(rows)
    failed, other = rows["cells"]
    failed |= {"outcome": "infrastructure", "stage": "measure", "error_type": "DeviceError", "error": "it is gone"}
    for name in set(rows) - {"cells", "operators"}:
        rows[name] = [row for row in rows[name] if fault_sweep._cell(row) == fault_sweep._cell(other)]
    judgement = judged(rows, expected, tmp_path, exit_code=1)
    assert (judgement.word, judgement.text) == ("reported", "measure: it is gone")
    assert judged(rows, expected, tmp_path, exit_code=4).word == "reported"
    assert judged(rows, expected, tmp_path, exit_code=0).word == "lost"
    rows["operators"][0]["max_abs"] = 12.5
    assert judged(rows, expected, tmp_path, exit_code=1).word == "lost"
    rows["operators"][0]["max_abs"] = None
    assert judged(rows, expected, tmp_path, exit_code=1).word == "reported"
    failed["error"] = None
    assert judged(rows, expected, tmp_path, exit_code=1).word == "lost"


@pytest.mark.parametrize(
    ("exit_code", "err", "word"),
    [
        (3, "export done\nqnnsweep: artifacts: the disk is full; free some space\n", "refused"),
        (1, "Traceback (most recent call last):\nKeyError: 'run'\n", "lost"),
        (-11, "", "lost"),
        (None, "export done\n", "lost"),
    ],
)
def test_a_run_without_rows_has_one_line_that_says_why_or_is_lost(
    exit_code: int | None, err: str, word: str, tmp_path: Path
) -> None:
    ran = fault_sweep.Ran(exit_code=exit_code, out="", err=err, seconds=1.0)
    assert fault_sweep.judge(ran, new_sweep(tmp_path), {}).word == word


class Objects(BaseHTTPRequestHandler):
    """An object of 1000 bytes under every name."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"x" * 1000)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        pass


def test_the_store_fails_only_from_one_call_of_fail_to_the_next() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Objects) as store, ExitStack() as stack:
        threading.Thread(target=store.serve_forever).start()
        stack.callback(store.shutdown)
        proxy = faulty_store.FaultyStore(f"http://127.0.0.1:{store.server_port}")
        stack.callback(proxy.close)

        def content() -> bytes:
            with urlopen(f"{proxy.endpoint}/bucket/object") as response:
                return response.read()

        assert content() == b"x" * 1000
        for fault, code in (("500", 500), ("503", 503)):
            proxy.fail(fault, 1.0)
            with pytest.raises(HTTPError) as failed:
                content()
            failed.value.close()
            assert (failed.value.code, proxy.hit[fault]) == (code, 1)
        for fault, error in (("cut", IncompleteRead), ("reset", (RemoteDisconnected, ConnectionResetError))):
            proxy.fail(fault, 1.0)
            with pytest.raises(error):
                content()
        proxy.fail(None)
        assert content() == b"x" * 1000


def test_the_clock_is_shifted_from_a_moment_on(tmp_path: Path) -> None:
    bench = fault_kinds.Bench(folder=tmp_path, prepared=tmp_path, expected={}, new_sweep=new_sweep, stack=ExitStack())
    library = str(bench.clock())
    lines = "import time, datetime; print(time.time(), datetime.datetime.now().timestamp())"

    def days(at: str) -> list[float]:
        shift = {"LD_PRELOAD": library, "CLOCK_SHIFT_S": str(-30 * fault_kinds.DAY_S), "CLOCK_SHIFT_AT": at}
        done = subprocess.run([sys.executable, "-c", lines], env=os.environ | shift, capture_output=True, check=True)
        now = Path(tmp_path / "now")
        now.touch()
        return [round((float(word) - now.stat().st_mtime) / fault_kinds.DAY_S) for word in done.stdout.split()]

    assert days("0") == [-30, -30]
    assert days("99999999999") == [0, 0]


def test_the_curve_shows_the_share_that_survived() -> None:
    chart = faults.curve(["equal"] * 50 + ["reported"] * 30 + ["lost"] * 20)
    assert all(f">{name}</text>" in chart for name in ("survived", "equal", "lost"))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fault_kinds.Bench]:
    """A bench with an undisturbed run of digits_cnn."""
    with ExitStack() as stack:
        yield faults.prepare(tmp_path_factory.mktemp("faults"), KINDS, stack)()


@pytest.mark.slow
@pytest.mark.night
@pytest.mark.parametrize("number", [0, 1])
def test_a_sweep_survives_a_fault(number: int, bench: fault_kinds.Bench) -> None:
    survived = faults.run_fault(bench, number, KINDS)
    assert survived.word != "lost", survived
    assert survived.heals
