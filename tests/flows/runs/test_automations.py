"""Automations of a real Prefect server that start from a real night: from its tags, its state and its regressed cell.

Each posts to a web server, and so does the notification that `trend.notify` requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.settings import temporary_settings

from tests.flows.cluster import client_settings, wait_until
from tests.flows.runs.test_events import automation
from tests.flows.runs.test_notifications import webhook, webhook_server
from tests.program import Program, new_program, with_server

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]

__all__ = ["webhook_server"]

NETS = """
import torch

def net(width):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, 2))
    model.weights_origin = "random"
    return model.eval()

def samples(count):
    return ({"inputs": {"x": torch.ones(1, 4) * number}} for number in range(count))
"""
MODEL = """
name: {name}
factory: nets:net
arguments: {{width: {width}}}
inputs: [{{name: x, shape: [1, 4]}}]
calibration: {{source: nets:samples, count: 1}}
evaluation: {{source: nets:samples, count: 1}}
"""
SWEEP = ("model=alarmed,steady", "scheme=fp32", "backend=portable", "measure.dump_operators=false")


def alarm(client: httpx.Client, name: str, block: str, **trigger: Any) -> None:
    """Create an automation that sends a notification with its own name as the subject."""
    more = "{{ event.payload.cell }} {{ event.payload.worse }}: {{ event.payload.changed | join(', ') }}"
    summary = "{% if event.payload.summary %} {{ event.payload.summary }}{% endif %}"
    body = f"{{{{ event.event }}}}{summary}{{% if event.payload.cell %}} {more}{{% endif %}}"
    automation(client, name, block, subject=name, body=body, **trigger)


def tagged(tag: str) -> dict[str, str]:
    return {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{tag}"}


@pytest.fixture
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, httpx.Client]]:
    """The program of a user, and a client of a server in which no other test runs anything."""
    with with_server(new_program(tmp_path_factory)) as served:
        yield served


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of two models of the same width."""
    folder = tmp_path / "conf"
    (folder / "model").mkdir(parents=True)
    (folder / "nets.py").write_text(NETS)
    write_model(folder, "alarmed", 16)
    write_model(folder, "steady", 16)
    return folder


def write_model(folder: Path, name: str, width: int) -> None:
    (folder / "model" / f"{name}.yaml").write_text(MODEL.format(name=name, width=width))


def test_a_night_with_a_regressed_cell_starts_what_waits_for_its_tags_its_state_and_its_event(
    own_server: tuple[Program, httpx.Client], webhook_server: tuple[str, list[dict[str, Any]]], folder: Path
) -> None:
    (program, client), (url, posted) = own_server, webhook_server
    with temporary_settings(client_settings(client)):
        block = webhook(url, "alarm")
    alarm(client, "failed", block, expect=["prefect.flow-run.Failed"])
    for tag in ("outcome:regressed", "outcome:failed"):
        alarm(client, tag, block, expect=["qnnsweep.ended"], match_related=tagged(tag))
    alarm(client, "model", block, expect=["qnnsweep.ended"], match_related=tagged("model:alarmed"),
          match={"qnnsweep.state": "Completed"})  # fmt: skip
    for model in ("alarmed", "steady"):
        alarm(client, model, block, expect=["qnnsweep.regressed"], match={"qnnsweep.model": model})
    options = (
        f"--config-dir={folder}",
        f"artifacts={folder.parent / 'artifacts'}",
        "trend.notify=[custom-webhook/alarm]",
    )

    def night() -> None:
        ran = program.run("run", *SWEEP, *options, "prefect.fail_on=[regressed]")
        assert ran.returncode == 0, ran.stderr

    night()
    wait_until(lambda: posted, 60, "an automation has started")
    assert [(sent["subject"], sent["body"]) for sent in posted] == [("model", "qnnsweep.ended 2 passed")]
    posted.clear()
    write_model(folder, "alarmed", 64)
    night()
    wait_until(lambda: len(posted) >= 4, 60, "four notifications were sent")
    sent = {sent["subject"].partition(" in ")[0]: sent["body"] for sent in posted}
    assert set(sent) == {"qnnsweep: 1 of 2 cells regressed", "failed", "outcome:regressed", "alarmed"}
    assert sent["failed"] == "prefect.flow-run.Failed"
    assert sent["outcome:regressed"] == "qnnsweep.ended 2 passed, 1 of 2 cells regressed"
    assert sent["alarmed"].startswith("qnnsweep.regressed alarmed · fp32 · SM8650 · local pte_bytes ")
    assert sent["alarmed"].endswith(": model.arguments.width 16 -> 64")
