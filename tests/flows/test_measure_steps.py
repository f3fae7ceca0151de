"""The steps of a measurement in the progress of a sweep and in the log of the task run."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from qnnsweep.flows.cells import graph
from qnnsweep.tasks.errors import DeviceError


def test_a_step_is_reported_as_a_stage_and_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(graph, "get_run_logger", lambda: logging.getLogger("task run"))
    caplog.set_level(logging.INFO, "task run")
    changes: list[tuple[str, str, str]] = []
    cells = graph.Graph(cast(Any, None), lambda *change: changes.append(change), "run")
    with cells._measure_step("digits_cnn · 8a8w", "deploy"):
        pass
    with pytest.raises(DeviceError), cells._measure_step("digits_cnn · 8a8w", "execute"):
        raise DeviceError("unplugged")
    assert changes == [
        ("deploy", "digits_cnn · 8a8w", "running"),
        ("deploy", "digits_cnn · 8a8w", "done"),
        ("execute", "digits_cnn · 8a8w", "running"),
        ("execute", "digits_cnn · 8a8w", "failed"),
    ]
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "deploy done"),
        ("ERROR", "execute failed: unplugged"),
    ]
