"""A benchmark of a fully cached sweep and an empty Prefect flow of as many task runs, alternating in one process.

The first sweep computes what `--artifacts` does not have yet (everything in a new folder); its time and the peak memory
of the process and its children are measured separately. Both sides use the same task runner and server. The tasks
of the empty flow do nothing; they have as many parameters as the stages, from the same upstream tasks. The time of a
sweep includes its work before and after the tasks: reading the configuration, writing tables and report. Prefect's
server processes the events of a flow after its end; neither side starts before the server has finished.
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

from qnnsweep.conf.load import load
from qnnsweep.conf.plan import Plan
from qnnsweep.flows.server.settings import configure_prefect

SCHEMES = "8a8w,16a8w,8a4w,16a4w,16a16w,16a2w,16a4w_block"
SOCS = (
    "SM8550,SM8650,SM8750,SM8845,SM8850,QCS9100,SA8255,SA8797,SC8380XP,SSG2115P,SSG2125P,SW6100,SXR1230P,SXR2330P,"
    "SAR2230P"
)
QUIET_S = 5
"""The server is idle if it has ended no task run for this number of seconds."""


def task_runs(plan: Plan) -> dict[str, int]:
    """Return the number of task runs per stage in a sweep of this plan, which has one model and distinct schemes."""
    cells = [cell.request for cell in plan.cells if cell.impossible is None]
    total = len(cells)
    return {
        "export": 1, "quantize": len({cell.scheme.name for cell in cells}),
        "lower": total, "bundle": total, "measure": total, "compare": total,
    }  # fmt: skip


def wait_until_idle() -> None:
    """Wait until the server has ended no further task runs for a while."""
    from prefect.client.orchestration import get_client

    ended = {"task_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}
    counts = [-1]
    with get_client(sync_client=True) as client:
        while len(counts) <= QUIET_S or counts[-1] != counts[-1 - QUIET_S]:
            time.sleep(1)
            counts.append(client.request("POST", "/task_runs/count", json=ended).json())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifacts", type=Path, default=Path("artifacts"))
    parser.add_argument("--schemes", default=SCHEMES)
    parser.add_argument("--socs", default=SOCS)
    parser.add_argument("--memory-gib", type=float, default=4.0, help="limits.memory_gib of all sweeps")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    overrides = [
        "model=digits_cnn", "model.evaluation.count=8", f"scheme={options.schemes}", f"soc={options.socs}",
        "reuse=capture", "tolerance=none", f"limits.memory_gib={options.memory_gib}",
        f"artifacts={options.artifacts.absolute()}",
    ]  # fmt: skip
    plan = load(overrides)
    count = task_runs(plan)
    # Prefect's database grows with every run, so both sides start with a new one.
    with tempfile.TemporaryDirectory() as home:
        os.environ["PREFECT_HOME"] = home
        configure_prefect()
        from empty_flow import empty
        from memory import Peak

        from qnnsweep.conf.units import GIB
        from qnnsweep.flows.server import connect
        from qnnsweep.flows.sweep import sweep

        connect.ensure()
        peak, start = Peak(os.getpid()), time.perf_counter()
        first = sweep(overrides)
        first_s, first_peak_gib = time.perf_counter() - start, peak.stop() / GIB
        ours: list[float] = []
        theirs: list[float] = []
        for number in range(options.rounds):
            for side in ("ours", "theirs") if number % 2 else ("theirs", "ours"):
                wait_until_idle()
                start = time.perf_counter()
                if side == "ours":
                    again = sweep(overrides)
                    ours.append(time.perf_counter() - start)
                    calls, reused = again.run.toolchain_calls, again.run.reused
                    assert (calls, reused) == (0, sum(count.values())), f"{calls} calls, {reused} reused of {count}"
                else:
                    assert empty(count) == sum(count.values())
                    theirs.append(time.perf_counter() - start)
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    result = {
        "cells": len(first.cells),
        "outcomes": dict(Counter(row["outcome"] for row in first.cells)),
        "first_s": first_s,
        "first_toolchain_calls": first.run.toolchain_calls,
        "first_peak_gib": first_peak_gib,
        "memory_gib": options.memory_gib,
        "task_runs": sum(count.values()),
        "sweep_s": statistics.median(ours),
        "empty_flow_s": statistics.median(theirs),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }
    for name, value in result.items():
        print(f"{name:<14} {value}")
    if options.as_json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
