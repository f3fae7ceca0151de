"""Prefect's states, tags, names and logs of a sweep whose cells fail, on a real server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.flows.cluster import wait_until
from tests.flows.sweep_outputs import result_of
from tests.program import Program

pytestmark = pytest.mark.toolchain

BRANCHING = """
import torch

class Branching(torch.nn.Module):
    def forward(self, image):
        return image + 1 if image.sum() > 0 else image
"""
MODEL = "defaults: [digits_cnn]\nname: branching\nfactory: branching:Branching\n"
COMMAND = ("model=digits_cnn,branching", "scheme=fp32", "backend=portable", "measure.dump_operators=false")
FAILED_CELL = ("quantize", "lower", "bundle", "measure", "compare", "cure")


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefectRecords:
    """What Prefect shows of a run of the program."""

    exit_code: int
    flow: dict[str, Any]
    tasks: dict[str, dict[str, Any]]
    """The task runs by their names."""
    logs: list[str]


def run_and_read(program: Program, server: httpx.Client, *command: str) -> PrefectRecords:
    ran = program.run("run", "--json", *command)
    assert result_of(ran)["outcomes"] == {"failed": 1, "passed": 1}, ran.stderr
    newest = server.post("/flow_runs/filter", json={"sort": "START_TIME_DESC", "limit": 20}).raise_for_status().json()
    flow = next(flow for flow in newest if command[-1] in flow["parameters"].get("overrides", ()))
    of_flow = {"flow_runs": {"id": {"any_": [flow["id"]]}}}

    def tasks() -> dict[str, dict[str, Any]]:
        runs = server.post("/task_runs/filter", json=of_flow).raise_for_status().json()
        return {run["name"]: run for run in runs if run["state_type"] not in ("PENDING", "RUNNING")}

    # Prefect's server records the events of task runs a moment after they happened.
    wait_until(lambda: len(tasks()) >= 12, 60, "all task runs have ended")
    logs = {"logs": {"flow_run_id": {"any_": [flow["id"]]}}, "limit": 200}
    lines = [log["message"] for log in server.post("/logs/filter", json=logs).raise_for_status().json()]
    return PrefectRecords(exit_code=ran.returncode, flow=flow, tasks=tasks(), logs=lines)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("conf")
    (folder / "model").mkdir()
    (folder / "branching.py").write_text(BRANCHING)
    (folder / "model" / "branching.yaml").write_text(MODEL)
    return (f"--config-dir={folder}", *COMMAND, f"artifacts={tmp_path_factory.mktemp('artifacts')}")


@pytest.fixture(scope="module")
def first(served_program: Program, prefect_api: httpx.Client, command: tuple[str, ...]) -> PrefectRecords:
    return run_and_read(served_program, prefect_api, *command)


def test_a_sweep_with_a_failed_cell_says_so_in_its_state_and_its_tags(first: PrefectRecords) -> None:
    assert first.exit_code == 1
    assert (first.flow["state_type"], first.flow["state_name"]) == ("COMPLETED", "Completed: 1 of 2 failed")
    assert sorted(first.flow["tags"]) == [
        "model:branching", "model:digits_cnn", "outcome:failed", "outcome:passed", "scheme:fp32",
    ]  # fmt: skip


def test_a_sweep_is_shown_as_failed_if_the_user_wants_this_and_its_results_are_the_same(
    served_program: Program, prefect_api: httpx.Client, command: tuple[str, ...], first: PrefectRecords
) -> None:
    again = run_and_read(served_program, prefect_api, *command, "prefect.fail_on=[failed]")
    assert (again.flow["state_type"], again.flow["state_name"]) == ("FAILED", "Failed")
    assert again.exit_code == first.exit_code


def test_stages_behind_a_failure_are_cancelled_with_the_name_of_their_cell_and_the_reason(
    first: PrefectRecords,
) -> None:
    tasks = {name: (run["state_type"], run["state"]["message"]) for name, run in first.tasks.items()}
    assert tasks["export branching"][0] == "FAILED"
    labels = {name for name in tasks if "branching" in name and not name.startswith("export")}
    assert {name.split()[0] for name in labels} == set(FAILED_CELL)
    assert {tasks[name] for name in labels} == {("CANCELLED", "export branching did not complete")}
    assert {state for name, (state, _) in tasks.items() if "digits_cnn" in name} == {"COMPLETED"}


def test_the_log_has_the_last_lines_of_the_toolchain_and_no_complaint_of_prefect(first: PrefectRecords) -> None:
    ends = [line for line in first.logs if re.match(r"the last lines of the log [0-9a-f]{64}:\n", line)]
    assert len(ends) == 2  # of the export and of lower
    assert any("at `return image + 1 if image.sum() > 0 else image` (branching.py:" in line for line in first.logs)
    assert [line for line in first.logs if "serialize" in line or "Failed to write" in line] == []


def test_no_file_is_stored_for_an_error(first: PrefectRecords, command: tuple[str, ...]) -> None:
    assert first.exit_code == 1
    results = Path(command[-1].removeprefix("artifacts=")) / "results"
    stored = [path.name for path in results.rglob("*") if path.is_file()]
    assert len(stored) >= 12
    assert [name for name in stored if not name.endswith(".parquet")] == []
