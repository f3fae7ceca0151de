"""`qnnsweep ui` serves the reports and files of runs, nothing else, to pages of this machine, and changes nothing."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from qnnsweep.flows.cli import report_server
from qnnsweep.flows.cli.report_server import ReportServer
from qnnsweep.tasks.report.page import render
from qnnsweep.tasks.report.templates import script_digests
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from tests.devices.loopback import free_port
from tests.flows.cluster import wait_until
from tests.program import Program
from tests.sample_tables import RUN as RUN_FACTS
from tests.sample_tables import cell, sweep, table

RUN = "20260101T220000Z-aaaa"
SECRET = b"not for a browser"
SANDBOX = "sandbox; default-src 'none'; style-src 'unsafe-inline'"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with one run, and files around it that nobody must read."""
    store = Store.at(str(tmp_path / "store"))
    store.check_writable()
    rows = [row | {"run_id": RUN} for row in table("cells", [cell("digits_cnn", "8a8w", "SM8650")])]
    tables.write(store, RUN, "cells", rows)
    run = store.root / "runs" / RUN
    files = {
        "report.html": "<!doctype html>report",
        "files/a&b/log.txt": "log",
        "files/page.html": "<script>x</script>",
    }
    for name, text in files.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)
    (tmp_path / "secret").write_bytes(SECRET)
    (run / "files" / "link").symlink_to(tmp_path / "secret")
    (run / "files" / "folder").symlink_to(tmp_path)
    (store.root / "runs" / "absent").mkdir()
    (store.root / "runs" / "absent" / "report.html").write_bytes(SECRET)
    (store.root / "blobs" / "aa").write_bytes(SECRET)
    return store


@pytest.fixture
def server(store: Store) -> Iterator[ReportServer]:
    with ReportServer(store, 0) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server
        server.shutdown()


def answer(server: ReportServer, path: str, method: str = "GET", host: str | None = None) -> tuple[int, str, bytes]:
    """Return the status, the content type with the content security policy, and the body. The path is sent as it is."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)) as connection:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or urlsplit(server.url).netloc)
        connection.endheaders()
        response = connection.getresponse()
        headers = [response.headers[name] for name in ("Content-Type", "Content-Security-Policy")]
        return response.status, " | ".join(filter(None, headers)), response.read()


def page_kind() -> str:
    scripts = " ".join(f"'sha256-{digest}'" for digest in script_digests())
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {scripts}; base-uri 'none'; form-action 'none'"
    return f"text/html; charset=utf-8 | {policy}"


def test_the_report_and_the_files_of_a_run_are_served(server: ReportServer) -> None:
    assert answer(server, f"/runs/{RUN}/report.html") == (200, page_kind(), b"<!doctype html>report")
    kind = f"text/plain; charset=utf-8 | {SANDBOX}"
    assert answer(server, f"/runs/{RUN}/files/a%26b/log.txt") == (200, kind, b"log")
    assert answer(server, f"/runs/{RUN}/report.html", "HEAD") == (200, page_kind(), b"")


def test_a_page_among_the_files_is_text_in_which_no_script_runs(server: ReportServer) -> None:
    kind = f"text/plain; charset=utf-8 | {SANDBOX}"
    assert answer(server, f"/runs/{RUN}/files/page.html") == (200, kind, b"<script>x</script>")


def test_the_policy_of_pages_names_the_scripts_of_the_pages_that_are_written_here() -> None:
    written = render(RUN_FACTS, sweep([cell("digits_cnn", "8a8w", "SM8650")]), {})
    named = re.findall(r"script-src 'sha256-([^']+)'", written)
    assert len(named) == 1
    assert {*named} < {*script_digests()}


def test_a_name_that_is_not_utf_8_is_listed_and_served(server: ReportServer, store: Store) -> None:
    name = os.fsencode(store.root / "runs" / RUN / "files") + b"/caf\xe9.txt"
    Path(os.fsdecode(name)).write_text("coffee")
    status, _, files = answer(server, f"/runs/{RUN}/")
    assert (status, b"/files/caf%E9.txt" in files) == (200, True)
    assert answer(server, f"/runs/{RUN}/files/caf%E9.txt")[::2] == (200, b"coffee")
    assert answer(server, f"/runs/{RUN}/files/%E9%00")[0] == 404
    (store.root / "tables" / "cells" / os.fsdecode(b"run=\xff")).mkdir()
    assert answer(server, "/")[0] == 200


def test_every_exception_becomes_a_status(server: ReportServer, store: Store) -> None:
    tables.write(store, "20260102T220000Z-bbbb", "cells", [])
    folder = store.root / "runs" / "20260102T220000Z-bbbb"
    folder.write_text("a file, where the folder of a run belongs")
    assert answer(server, "/runs/20260102T220000Z-bbbb/report.html")[0] in (404, 500)
    shutil.rmtree(store.root / "tables")
    (store.root / "tables").write_text("a file")
    assert answer(server, f"/runs/{RUN}/report.html")[0] in (404, 500)
    assert answer(server, "/")[0] in (200, 500)


def test_connections_and_their_time_are_bounded(server: ReportServer, monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    silent = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(40)]
    try:
        refused = silent[-1]
        refused.settimeout(30)
        assert refused.recv(100).startswith(b"HTTP/1.1 503 ")
        assert threading.active_count() - before <= 32
        monkeypatch.setattr(report_server, "_LONGEST_S", 0.0)
        silent[0].settimeout(30)
        assert silent[0].recv(100) == b""  # ended by the server
    finally:
        for connection in silent:
            connection.close()
    monkeypatch.undo()
    wait_until(lambda: answer(server, "/")[0] == 200, 30, "the connections are free again")


def test_the_first_page_is_the_history_and_leads_to_the_reports_and_to_the_cells(server: ReportServer) -> None:
    for path in ("/", "/index.html"):
        status, kind, page = answer(server, path)
        assert (status, kind) == (200, page_kind())
        assert f'<a href="runs/{RUN}/report.html">2026-01-01 22:00</a>'.encode() in page
    assert answer(server, "/cells/digits_cnn~8a8w~SM8650.html")[0] == 200
    assert answer(server, "/cells/no~such~cell.html")[0] == 404


def test_a_run_that_ends_while_the_server_runs_is_on_the_first_page(server: ReportServer, store: Store) -> None:
    later = "20260102T220000Z-bbbb"
    assert b"2026-01-02" not in answer(server, "/")[2]
    rows = [row | {"run_id": later} for row in table("cells", [cell("digits_cnn", "8a8w", "SM8650")])]
    tables.write(store, later, "cells", rows)
    assert b"2026-01-02 22:00" in answer(server, "/")[2]


def test_the_page_of_a_run_lists_its_files(server: ReportServer) -> None:
    status, _, files = answer(server, f"/runs/{RUN}/")
    assert (status, files.count(b"<li>")) == (200, 3)
    assert f'<a href="/runs/{RUN}/files/a%26b/log.txt">files/a&amp;b/log.txt</a>'.encode() in files


@pytest.mark.parametrize(
    "path",
    [
        "/../secret", f"/runs/{RUN}/../../../secret", f"/runs/{RUN}/..%2f..%2f..%2fsecret", "//etc/passwd",
        f"/runs/{RUN}/files/link", f"/runs/{RUN}/files/folder/secret", f"/runs/{RUN}/files/%00", "/blobs/aa",
        "/runs/absent/report.html", "/runs/../blobs/aa", "/tables/", f"/runs/{RUN}/files/../../../blobs/aa", "/runs/",
        f"/runs/./{RUN}/report.html", "file:///etc/passwd",
    ],
)  # fmt: skip
def test_nothing_else_is_served(server: ReportServer, path: str) -> None:
    status, _, body = answer(server, path)
    assert status == 404
    assert SECRET not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(server: ReportServer, store: Store, method: str) -> None:
    assert answer(server, f"/runs/{RUN}/report.html", method)[0] == 501
    assert (store.root / "runs" / RUN / "report.html").read_text() == "<!doctype html>report"


def test_a_foreign_page_whose_name_has_the_address_of_this_machine_gets_nothing(server: ReportServer) -> None:
    status, _, body = answer(server, f"/runs/{RUN}/report.html", host=f"evil.example:{server.server_port}")
    assert (status, body) == (403, f"open {server.url}\n".encode())
    assert answer(server, "/", host=f"localhost:{server.server_port}")[0] == 200


def test_a_folder_that_does_not_exist_is_one_line(program: Program) -> None:
    ran = program.run("ui", "artifacts=/nowhere/at all")
    line = "qnnsweep: --artifacts=/nowhere/at all: there is no such folder; name the artifacts folder of a run\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", line)


def test_the_command_prints_its_address_and_ends_with_ctrl_c(program: Program, store: Store) -> None:
    port = free_port()
    with program.start("ui", f"--port={port}", f"artifacts={store.root}") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"reports of {store.root}: http://127.0.0.1:{port}/\n"
        second = program.run("ui", f"--port={port}", f"artifacts={store.root}")
        assert (second.returncode, second.stderr) == (
            3, f"qnnsweep: --port={port}: Address already in use; choose another port\n",
        )  # fmt: skip
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
