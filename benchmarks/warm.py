"""A sweep that finds everything, against an empty Prefect flow with as many task runs, in turn in one process.

The first sweep makes whatever `--artifacts` does not have yet (in a new folder everything): it is timed for itself,
with the most memory that the process and its children had. The empty flow's tasks do nothing, on the same task runner
and the same server, each with as many parameters as the stage that it stands for, and with the same ones of them still
to come from other tasks. What a sweep does before and after its tasks counts: reading the configuration, writing tables
and report. Prefect's server takes in what a flow told it after that flow has ended: neither side begins before it has
taken in the other's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from conf.load import load
from conf.plan import Plan
from flows.server.settings import configure_prefect

SCHEMES = "8a8w,16a8w,8a4w,16a4w,16a16w,16a2w,16a4w_block"
SOCS = (
    "SM8550,SM8650,SM8750,SM8845,SM8850,QCS9100,SA8255,SA8797,SC8380XP,SSG2115P,SSG2125P,SW6100,SXR1230P,SXR2330P,"
    "SAR2230P"
)
SETTLED_AFTER = 5
"""Seconds in which the server ends no task run."""


def counted(plan: Plan) -> dict[str, int]:
    """Runs of each stage in a sweep of this plan, of one model, where no two schemes give the same."""
    cells = [cell.request for cell in plan.cells if cell.impossible is None]
    each = len(cells)
    return {
        "export": 1, "quantize": len({cell.scheme.name for cell in cells}),
        "lower": each, "bundle": each, "measure": each, "compare": each,
    }  # fmt: skip


def settle() -> None:
    """Wait until the server counts no more task runs as ended than a while ago."""
    from prefect.client.orchestration import get_client

    ended = {"task_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}
    seen = [-1]
    with get_client(sync_client=True) as client:
        while len(seen) <= SETTLED_AFTER or seen[-1] != seen[-1 - SETTLED_AFTER]:
            time.sleep(1)
            seen.append(client.request("POST", "/task_runs/count", json=ended).json())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifacts", type=Path, default=Path("artifacts"))
    parser.add_argument("--schemes", default=SCHEMES)
    parser.add_argument("--socs", default=SOCS)
    parser.add_argument("--memory-gib", type=float, default=4.0, help="limits.memory_gib of all sweeps")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", dest="as_json")
    asked = parser.parse_args()
    overrides = [
        "model=digits_cnn", "model.evaluation.count=8", f"scheme={asked.schemes}", f"soc={asked.socs}",
        "reuse=capture", "tolerance=none", f"limits.memory_gib={asked.memory_gib}",
        f"artifacts={asked.artifacts.absolute()}",
    ]  # fmt: skip
    plan = load(overrides)
    count = counted(plan)
    # Prefect's own database grows with every run: neither side begins with somebody's years in it.
    with tempfile.TemporaryDirectory() as home:
        os.environ["PREFECT_HOME"] = home
        configure_prefect()
        from empty_flow import empty
        from memory import GIB, Peak

        from flows.server import connect
        from flows.sweep import sweep

        connect.ensure()
        peak, began = Peak(os.getpid()), time.perf_counter()
        first = sweep(overrides)
        first_s, first_peak_gib = time.perf_counter() - began, peak.stop() / GIB
        ours: list[float] = []
        theirs: list[float] = []
        for number in range(asked.rounds):
            for side in ("ours", "theirs") if number % 2 else ("theirs", "ours"):
                settle()
                began = time.perf_counter()
                if side == "ours":
                    again = sweep(overrides)
                    ours.append(time.perf_counter() - began)
                    calls, reused = again.run.toolchain_calls, again.run.reused
                    assert (calls, reused) == (0, sum(count.values())), f"{calls} calls, {reused} reused of {count}"
                else:
                    assert empty(count) == sum(count.values())
                    theirs.append(time.perf_counter() - began)
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    told = {
        "cells": len(first.cells),
        "outcomes": dict(Counter(row["outcome"] for row in first.cells)),
        "first_s": first_s,
        "first_toolchain_calls": first.run.toolchain_calls,
        "first_peak_gib": first_peak_gib,
        "memory_gib": asked.memory_gib,
        "task_runs": sum(count.values()),
        "sweep_s": statistics.median(ours),
        "empty_flow_s": statistics.median(theirs),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }
    for name, value in told.items():
        print(f"{name:<14} {value}")
    if asked.as_json:
        print(json.dumps(told))


if __name__ == "__main__":
    main()
