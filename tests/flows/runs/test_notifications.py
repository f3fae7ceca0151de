"""Notifications about regressions: sent over HTTP, through a notification block of a real Prefect server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.blocks.system import Secret
from prefect.settings import temporary_settings

from qnnsweep.flows.runs import notifications
from qnnsweep.flows.runs.results import SweepResult
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from tests.flows.cluster import client_settings
from tests.flows.runs.synthetic_history import run_of
from tests.flows.runs.test_history import write_history
from tests.sample_tables import RUN


@pytest.fixture(scope="module", autouse=True)
def prefect_server(prefect_api: httpx.Client) -> Iterator[None]:
    with temporary_settings(client_settings(prefect_api)):
        yield


@pytest.fixture
def webhook_server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a web server, and the list of what was posted to it."""
    posted: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", posted
    server.shutdown()
    thread.join()
    server.server_close()


def webhook(url: str, name: str) -> str:
    block = CustomWebhookNotificationBlock(
        name=name, url=url, method="POST", json_data={"subject": "{{subject}}", "body": "{{body}}"}
    )
    block.save(name, overwrite=True)
    return f"custom-webhook/{name}"


def night(folder: Path, number: int) -> tuple[SweepResult, Store]:
    """Return the result of a night. The fourth night, number 3, lost ten dB; the nights before it lost nothing."""
    write_history(folder, [*[{"final_snr_db": 30.0}] * 3, {"final_snr_db": 20.0, "torch": "2.14.0"}])
    store = Store(folder)
    cells, trends = (tables.rows(store, name, run_of(number)) for name in ("cells", "trends"))
    return SweepResult(run=RUN, cells=cells, trends=trends, page=folder / "report.html"), store


def test_a_notification_names_the_regression_and_links_to_the_report(
    webhook_server: tuple[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    url, posted = webhook_server
    notifications.send(notifications.load_notifiers([webhook(url, "team")]), *night(tmp_path, 3))
    (notification,) = posted
    assert notification["subject"] == f"qnnsweep: 1 of 1 cell regressed in {RUN.run_id}"
    assert "toy · 8a8w · SM8650 · phone" in notification["body"]
    assert "| 20 dB | 30 dB |" in notification["body"]
    assert "torch 2.13.0 -\\> 2.14.0" in notification["body"]
    assert notification["body"].rstrip().endswith(f"/runs/{RUN.run_id}/report.html")


def test_a_run_without_a_regression_sends_no_notification(
    webhook_server: tuple[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    url, posted = webhook_server
    notifications.send(notifications.load_notifiers([webhook(url, "team")]), *night(tmp_path, 2))
    assert posted == []


def test_a_notifier_that_cannot_be_reached_does_not_stop_the_others(
    webhook_server: tuple[str, list[dict[str, Any]]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, posted = webhook_server
    names = [webhook("http://127.0.0.1:9/", "nobody"), webhook(url, "team")]
    notifications.send(notifications.load_notifiers(names), *night(tmp_path, 3))
    assert len(posted) == 1
    assert "CustomWebhookNotificationBlock was not notified: " in caplog.text


def test_a_block_that_is_missing_or_sends_no_notifications_is_refused() -> None:
    with pytest.raises(RequestError, match=r"^trend.notify=custom-webhook/absent: this Prefect .* no such block"):
        notifications.load_notifiers(["custom-webhook/absent"])
    Secret(value="x").save("word", overwrite=True)
    with pytest.raises(RequestError, match=r"^trend.notify=secret/word: a Secret is not a notification block"):
        notifications.load_notifiers(["secret/word"])
