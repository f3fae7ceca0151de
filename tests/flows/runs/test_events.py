"""The event of a regressed cell: an automation of a real Prefect server starts from it and posts to a real webhook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.events.worker import EventsWorker
from prefect.settings import temporary_settings

from qnnsweep.flows.runs.events import emit_regressions
from tests.flows.cluster import client_settings, wait_until
from tests.flows.runs.synthetic_history import run_of
from tests.flows.runs.test_notifications import night, webhook, webhook_server
from tests.sample_tables import RUN

__all__ = ["webhook_server"]


@pytest.fixture(scope="module", autouse=True)
def prefect_server(prefect_api: httpx.Client) -> Iterator[None]:
    with temporary_settings(client_settings(prefect_api)):
        yield
        EventsWorker.drain_all()


SUBJECT = "{{ event.payload.cell }}"
BODY = "{{ event.payload.worse }} since {{ event.payload.since }}: {{ event.payload.changed | join(', ') }}"


def automation(client: httpx.Client, name: str, block: str, *, subject: str, body: str, **trigger: Any) -> None:
    """Create an automation that sends a notification for each event of its trigger."""
    whole = {"type": "event", "posture": "Reactive", "for_each": [], "threshold": 1, "within": 0, **trigger}
    kind, block_name = block.split("/")
    document = client.get(f"/block_types/slug/{kind}/block_documents/name/{block_name}").raise_for_status().json()
    texts = {"subject": subject, "body": body}
    action = {"type": "send-notification", "block_document_id": document["id"], **texts}
    created = {"name": name, "trigger": whole, "actions": [action]}
    client.post("/automations/", json=created).raise_for_status()


def events(client: httpx.Client) -> list[dict[str, Any]]:
    """Return the events of this module's run; other tests use the server, too."""
    named = {"filter": {"event": {"name": ["qnnsweep.regressed"]}}}
    found = client.post("/events/filter", json=named).raise_for_status().json()["events"]
    return [event for event in found if event["payload"]["run"] == RUN.run_id]


def test_an_automation_starts_from_the_event_of_a_cell_of_its_model_alone(
    webhook_server: tuple[str, list[dict[str, Any]]], prefect_api: httpx.Client, tmp_path: Path
) -> None:
    url, posted = webhook_server
    block = webhook(url, "automated")
    for model in ("toy", "another"):
        trigger: dict[str, Any] = {"expect": ["qnnsweep.regressed"], "match": {"qnnsweep.model": model}}
        automation(prefect_api, f"regressed {model}", block, subject=SUBJECT, body=BODY, **trigger)
    emit_regressions(*night(tmp_path, 2))  # no regression
    emit_regressions(*night(tmp_path / "worse", 3))
    wait_until(lambda: posted, 60, "the webhook was called")
    (notification,) = posted
    assert notification["subject"] == "toy · 8a8w · SM8650 · phone"
    assert notification["body"] == f"final_snr_db 20 dB, was 30 dB since {run_of(3)}: torch 2.13.0 -> 2.14.0"
    (event,) = wait_until(lambda: events(prefect_api), 60, "the server has stored the event")
    assert event["resource"]["qnnsweep.scheme"] == "8a8w"
    assert event["payload"]["series"][0]["first_bad_run"] == run_of(3)
