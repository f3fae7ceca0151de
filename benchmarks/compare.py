"""A benchmark of the comparison, ExecuTorch's Inspector and the Qualcomm comparators, on the same files.

    python benchmarks/compare.py                                  EfficientNet-Lite0, 16a8w, SM8650
    python benchmarks/compare.py model=digits_cnn --repeats=3     any quantized cell on QNN

The input is one lowering and one capture, from the newest run of the cell or else from a new run. Each side reads them
in a new process. The sides alternate, so that other load on the machine affects all of them:

    inspector   Inspector(...), then MSE, L1 and SNR of every operator
    total       qnnsweep with measure.replay=false: final outputs, profile, and five metrics of every operator
    replay      qnnsweep with measure.budget=false: as `total`, and the error that each operator introduces
    budget      qnnsweep with its defaults: as `replay`, and the error budget of every final output

All sides compare one sample (measure.operator_samples=1), because the Inspector handles one.

docs/benchmarks.md describes what is timed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cells import cell

from qnnsweep.tasks.storage.codec import encode
from qnnsweep.tasks.toolchain.backends.qnn.sdk import find_sdk

CELL = {"model": "efficientnet_lite0", "scheme": "16a8w", "soc": "SM8650", "measure.operator_samples": "1"}
SIDES = ("inspector", "total", "replay", "budget")
LIMITS = {"ratio": 0.2, "ratio_with_replay": 0.6, "ratio_with_budget": 1.5}
"""The largest accepted ratios of the seconds, on a machine without other load."""
WORKER = Path(__file__).with_name("compare_side.py")

WITHIN = {"mse": 1e-3, "l1": 1e-3, "snr_db": 1e-3}
"""The allowed difference: relative for MSE and L1, in dB for the SNR. The Inspector dequantizes in float32."""
EXACT_DB = 140
"""From this SNR on, an error is rounding of float32: zero for the Inspector, but not in qnnsweep's float64."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="one quantized cell on QNN, in the grammar of `qnnsweep run`")
    parser.add_argument("--artifacts", default="artifacts", help="where to look for a run of the cell, or to create it")
    parser.add_argument("--repeats", type=int, default=5, help="number of new processes per side")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line")
    options = parser.parse_args()
    keys = {override.partition("=")[0] for override in options.overrides}
    overrides = [*(f"{key}={value}" for key, value in CELL.items() if key not in keys), *options.overrides]
    with tempfile.TemporaryDirectory() as folder:
        environment = prepare_inputs(options.artifacts, overrides, Path(folder))
        runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        for _ in range(options.repeats):
            for side in SIDES:
                runs[side].append(run_side(side, folder, environment))
    result = {"cell": overrides, "repeats": options.repeats, **summary(runs)}
    show(result)
    if options.json:
        print(json.dumps(result))
    return 0 if result["agreement"]["agrees"] else 1


def prepare_inputs(artifacts: str, overrides: list[str], folder: Path) -> dict[str, str]:
    """Write the records of the cell into `folder`, and return the environment that QNN's libraries need."""
    _, resources, evidence = cell(artifacts, *overrides)
    for name, record in (("lowered", evidence.lowered), ("capture", evidence.capture)):
        (folder / f"{name}.parquet").write_bytes(encode(record))
    request = {"overrides": overrides, "store": str(resources.store.root)}
    (folder / "request.json").write_text(json.dumps(request))
    return find_sdk(os.environ).environment(os.environ)


def run_side(side: str, folder: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the measurements of one side, from a new process."""
    done = subprocess.run(
        [sys.executable, str(WORKER), side, folder], env={**os.environ, **environment}, capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.exit(f"{side} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def summary(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    sides = {side: figures(measurements) for side, measurements in runs.items()}
    theirs, total, replay, budget = (sides[side] for side in SIDES)

    def ratio(mine: Mapping[str, Any], figure: str) -> float:
        return mine[figure]["median"] / theirs[figure]["median"]

    return {
        "ratio": ratio(total, "seconds"),
        "ratio_with_replay": ratio(replay, "seconds"),
        "ratio_with_budget": ratio(budget, "seconds"),
        "ratio_cpu": ratio(total, "cpu_seconds"),
        "ratio_cpu_with_replay": ratio(replay, "cpu_seconds"),
        "ratio_cpu_with_budget": ratio(budget, "cpu_seconds"),
        "ratio_with_imports": ratio(total, "with_imports_seconds"),
        "ratio_with_replay_with_imports": ratio(replay, "with_imports_seconds"),
        "ratio_with_budget_with_imports": ratio(budget, "with_imports_seconds"),
        "ratio_peak_memory": ratio(budget, "peak_mib"),
        "ratio_peak_memory_with_replay": ratio(replay, "peak_mib"),
        "ratio_peak_memory_total_only": ratio(total, "peak_mib"),
        "ratio_peak_memory_beyond_imports": ratio(budget, "beyond_start_mib"),
        "sides": sides,
        "agreement": agreement(runs["inspector"][0]["operators"], runs["total"][0]["operators"]),
    }


def figures(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    columns = {
        "seconds": [run["seconds"] for run in runs],
        "cpu_seconds": [run["cpu_seconds"] for run in runs],
        "with_imports_seconds": [run["seconds"] + run["imports"]["seconds"] for run in runs],
        "peak_mib": [run["peak_mib"] for run in runs],
        "beyond_start_mib": [run["peak_mib"] - run["start_mib"] for run in runs],
    }
    return {
        name: {"median": statistics.median(values), "min": min(values), "max": max(values)}
        for name, values in columns.items()
    }


def agreement(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the metrics of every operator that both sides have."""
    both = [operator for operator in theirs if operator in mine]
    exact = [operator for operator in both if _exact(theirs[operator]) and _exact(mine[operator])]
    largest = dict.fromkeys(WITHIN, 0.0)
    disagreeing: list[str] = []
    for operator in both:
        for metric, within in () if operator in exact else WITHIN.items():
            left, right = theirs[operator][metric], mine[operator][metric]
            difference = math.inf if right is None else abs(left - right)
            difference /= 1 if metric == "snr_db" or not right else right
            largest[metric] = max(largest[metric], difference)
            if not difference <= within:
                disagreeing.append(f"{operator} {metric}: {left} and {right}")
    return {
        "agrees": bool(both) and not disagreeing,
        "operators": len(both),
        "exact": len(exact),
        "only_inspector": sorted(set(theirs) - set(mine)),
        "only_qnnsweep": sorted(set(mine) - set(theirs)),
        "furthest": largest,
        "disagreeing": disagreeing,
    }


def _exact(figures: Mapping[str, float | None]) -> bool:
    """Return whether there is at most rounding of float32. The SNR of equal values is None here, infinite there."""
    ratio = figures["snr_db"]
    return figures["mse"] == 0 or (ratio is not None and ratio >= EXACT_DB)


def show(result: Mapping[str, Any]) -> None:
    columns = ("seconds", "cpu_seconds", "with_imports_seconds", "peak_mib", "beyond_start_mib")
    titles = ("seconds", "CPU seconds", "with imports", "peak MiB", "beyond start")
    print(f"median (least to most) of {result['repeats']} new processes each\n")
    print(f"{'':10}" + "".join(f"{title:>26}" for title in titles))
    for side, figure in result["sides"].items():
        cells = (figure[column] for column in columns)
        print(
            f"{side:10}" + "".join(f"{c['median']:>10.2f} ({c['min']:.2f} to {c['max']:.2f})".rjust(26) for c in cells)
        )
    print()
    for key, value in result.items():
        if key.startswith("ratio"):
            limit = f"  (at most {LIMITS[key]})" if key in LIMITS else ""
            print(f"{key:36}{value:6.3f}{limit}")
    both = result["agreement"]
    print(
        f"\n{both['operators']} operators on both sides, {both['exact']} exact; largest differences: {both['furthest']}"
    )
    print(f"only the Inspector: {both['only_inspector']}; only qnnsweep: {both['only_qnnsweep']}")
    print("\n".join(["the sides disagree:", *both["disagreeing"]]) if both["disagreeing"] else "the sides agree")


if __name__ == "__main__":
    sys.exit(main())
