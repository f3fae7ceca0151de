"""The keys of a whole run in every command that makes a run: each has an effect there, or is refused by its name."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from qnnsweep.flows.cli.main import command_line
from tests.flows.cluster import wait_until
from tests.flows.small_net import write_small_net
from tests.flows.sweep_outputs import result_of
from tests.program import Program

SMALL = ("model=small_net", "scheme=8a8w", "soc=SM8650", "model.evaluation.count=2", "measure.cures=0")
NO_NIGHT = "is not compared with earlier nights, so this key has no effect; leave it out"
NO_CHANGE = "to compare a past run again, override only tolerance, measure.replay, measure.metrics, "
REFUSED = {
    ("repair", "target.final_snr_db=30", "trend.fail=true"): f"trend.fail: a repair {NO_NIGHT}",
    ("repair", "target.final_snr_db=30", "trend.notify=[slack-webhook/x]"): f"trend.notify: a repair {NO_NIGHT}",
    ("repair", "target.final_snr_db=30", "trend.floors.final_snr_db=7"): f"trend.floors: a repair {NO_NIGHT}",
    ("bisect", "scheme.observer=HistogramObserver", "", "trend.fail=true"): f"trend.fail: a bisection {NO_NIGHT}",
    (
        "bisect",
        "scheme.observer=HistogramObserver",
        "",
        "trend.notify=[slack-webhook/x]",
    ): f"trend.notify: a bisection {NO_NIGHT}",
    ("serve", "trend.fail=true"): "trend.fail=true: a served sweep has no exit code; set prefect.fail_on=[regressed] ",
    ("recompare", "trend.fail=true"): f"trend.fail=true: {NO_CHANGE}",
    ("recompare", "trend.notify=[slack-webhook/x]"): f"trend.notify=[slack-webhook/x]: {NO_CHANGE}",
    ("recompare", "prefect.fail_on=[failed]"): f"prefect.fail_on=[failed]: {NO_CHANGE}",
    ("recompare", "retention.keep_runs=1"): f"retention.keep_runs=1: {NO_CHANGE}",
}
LIMIT = "tolerance.final_snr_db={8a8w:300}"
EFFECTS = {
    "sweep": ("run",),
    "repair": ("repair", "target.final_snr_db=300", "budget.compilations=1"),
    "bisect": ("bisect", "scheme.observer=HistogramObserver", "", "--oracle=final_snr_db<-300"),
}
"""The commands, by the names of their flows. `qualify` and `atlas` run the flow `sweep`; `spread` ends as it does. See
the tests of these commands."""


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_a_key_without_effect_is_refused_by_its_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...]
) -> None:
    place = f"--artifacts={tmp_path / 'none'}"
    code = command_line([*words, "scheme=8a8w", place] if words[0] in ("repair", "bisect") else [*words, place])
    printed = capsys.readouterr()
    assert (code, printed.out, printed.err.count("\n")) == (2, "", 1)
    assert printed.err.startswith(f"qnnsweep: {REFUSED[words]}")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The words of a small cell that is out of tolerance, in a store that all tests here use."""
    folder = tmp_path_factory.mktemp("small")
    write_small_net(folder / "conf")
    return (*SMALL, LIMIT, f"--config-dir={folder / 'conf'}", f"artifacts={folder / 'artifacts'}")


def latest_flow_run(server: httpx.Client, artifacts: str) -> dict[str, Any]:
    """Return the newest flow run of a store. All test processes have one Prefect server."""
    newest = server.post("/flow_runs/filter", json={"sort": "START_TIME_DESC", "limit": 100}).raise_for_status().json()
    return next(flow for flow in newest if artifacts in str(flow["parameters"]))


@pytest.mark.toolchain
@pytest.mark.parametrize("flow", EFFECTS)
def test_every_command_that_makes_a_run_prunes_tags_and_fails_alike(
    served_program: Program, prefect_api: httpx.Client, small: tuple[str, ...], flow: str
) -> None:
    keys = ("retention.keep_runs=1", "prefect.fail_on=[out_of_tolerance]")
    ran = served_program.run(*EFFECTS[flow], *small, *keys, "--json")
    assert ran.returncode == 1, ran.stderr
    tables = Path(small[-1].removeprefix("artifacts=")) / "tables" / "cells"
    assert [path.name for path in tables.iterdir()] == [f"run={result_of(ran)['run_id']}"]
    run = latest_flow_run(prefect_api, small[-1])
    assert (run["name"].split()[0], run["state_type"]) == (flow, "FAILED")
    assert {"model:small_net", "scheme:8a8w", "outcome:out_of_tolerance"} <= {*run["tags"]}


@pytest.mark.toolchain
def test_ctrl_c_gives_the_flow_run_the_state_cancelled(
    served_program: Program, prefect_api: httpx.Client, small: tuple[str, ...]
) -> None:
    with served_program.start("run", *small, "model.calibration.count=7") as process:
        assert process.stderr is not None
        before = next(line for line in process.stderr if line.startswith("export "))
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, before + stderr

    def is_cancelled() -> bool:
        return latest_flow_run(prefect_api, small[-1])["state_type"] == "CANCELLED"

    wait_until(is_cancelled, 60, "the flow run is cancelled")
