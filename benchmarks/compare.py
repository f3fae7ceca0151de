"""qnnsweep's comparison against ExecuTorch's Inspector with the Qualcomm comparators, on the same files.

    python benchmarks/compare.py                                  EfficientNet-Lite0, 16a8w, SM8650
    python benchmarks/compare.py model=digits_cnn --repeats=3     any quantized cell on QNN

One lowering and one capture, from the newest run of the cell or else a new one. Each side reads them in a fresh process
of its own, in turn, so that whatever else the machine does favours neither:

    inspector   Inspector(...), then MSE, L1 and SNR of every operator
    total       qnnsweep with measure.replay=false: final outputs, profile, and five metrics of every operator
    replay      qnnsweep as it ships: the same, and what each operator introduced

docs/benchmarks.md says what is timed and what is not.
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

from tasks.storage.codec import encode
from tasks.toolchain.backends.qnn.sdk import find_sdk

CELL = {"model": "efficientnet_lite0", "scheme": "16a8w", "soc": "SM8650"}
SIDES = ("inspector", "total", "replay")
WORKER = Path(__file__).with_name("compare_side.py")

WITHIN = {"mse": 1e-3, "l1": 1e-3, "snr_db": 1e-3}
"""How far the two may differ, as a share of the value; SNR in dB. The Inspector dequantizes in float32."""
EXACT_DB = 140
"""An error below this is float32's own rounding: zero for the Inspector, and no zero for qnnsweep's float64."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="one quantized cell on QNN, in the grammar of `qnnsweep run`")
    parser.add_argument("--artifacts", default="artifacts", help="where to look for a run of the cell, and to make it")
    parser.add_argument("--repeats", type=int, default=5, help="fresh processes of each side")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line")
    asked = parser.parse_args()
    given = {override.partition("=")[0] for override in asked.overrides}
    overrides = [*(f"{key}={value}" for key, value in CELL.items() if key not in given), *asked.overrides]
    with tempfile.TemporaryDirectory() as folder:
        environment = prepared(asked.artifacts, overrides, Path(folder))
        runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        for _ in range(asked.repeats):
            for side in SIDES:
                runs[side].append(ran(side, folder, environment))
    found = {"cell": overrides, "repeats": asked.repeats, **summary(runs)}
    show(found)
    if asked.json:
        print(json.dumps(found))
    return 0 if found["agreement"]["agrees"] else 1


def prepared(artifacts: str, overrides: list[str], folder: Path) -> dict[str, str]:
    """Have the cell's records in `folder`; what QNN's libraries need in the environment of who imports ExecuTorch."""
    _, resources, measured = cell(artifacts, *overrides)
    for name, record in (("lowered", measured.lowered), ("capture", measured.capture)):
        (folder / f"{name}.parquet").write_bytes(encode(record))
    asked = {"overrides": overrides, "store": str(resources.store.root)}
    (folder / "asked.json").write_text(json.dumps(asked))
    return find_sdk(os.environ, resources.store.root / "toolchain").environment(os.environ)


def ran(side: str, folder: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """One side's figures, from a process of its own."""
    done = subprocess.run(
        [sys.executable, str(WORKER), side, folder], env={**os.environ, **environment}, capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.exit(f"{side} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def summary(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    sides = {side: figures(each) for side, each in runs.items()}
    theirs, total, replay = (sides[side] for side in SIDES)

    def ratio(mine: Mapping[str, Any], figure: str) -> float:
        return mine[figure]["median"] / theirs[figure]["median"]

    return {
        "ratio": ratio(total, "seconds"),
        "ratio_with_replay": ratio(replay, "seconds"),
        "ratio_peak_memory": ratio(replay, "peak_mib"),
        "ratio_cpu": ratio(total, "cpu_seconds"),
        "ratio_cpu_with_replay": ratio(replay, "cpu_seconds"),
        "ratio_with_imports": ratio(total, "with_imports_seconds"),
        "ratio_with_replay_with_imports": ratio(replay, "with_imports_seconds"),
        "ratio_peak_memory_total_only": ratio(total, "peak_mib"),
        "ratio_peak_memory_beyond_imports": ratio(replay, "beyond_start_mib"),
        "sides": sides,
        "agreement": agreement(runs["inspector"][0]["operators"], runs["total"][0]["operators"]),
    }


def figures(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    each = {
        "seconds": [run["seconds"] for run in runs],
        "cpu_seconds": [run["cpu_seconds"] for run in runs],
        "with_imports_seconds": [run["seconds"] + run["imports"]["seconds"] for run in runs],
        "peak_mib": [run["peak_mib"] for run in runs],
        "beyond_start_mib": [run["peak_mib"] - run["start_mib"] for run in runs],
    }
    return {
        name: {"median": statistics.median(values), "min": min(values), "max": max(values)}
        for name, values in each.items()
    }


def agreement(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> dict[str, Any]:
    """Every operator that both sides have, metric by metric."""
    both = [operator for operator in theirs if operator in mine]
    exact = [operator for operator in both if _exact(theirs[operator]) and _exact(mine[operator])]
    furthest = dict.fromkeys(WITHIN, 0.0)
    disagreeing: list[str] = []
    for operator in both:
        for metric, within in () if operator in exact else WITHIN.items():
            left, right = theirs[operator][metric], mine[operator][metric]
            apart = math.inf if right is None else abs(left - right)
            apart /= 1 if metric == "snr_db" or not right else right
            furthest[metric] = max(furthest[metric], apart)
            if not apart <= within:
                disagreeing.append(f"{operator} {metric}: {left} and {right}")
    return {
        "agrees": bool(both) and not disagreeing,
        "operators": len(both),
        "exact": len(exact),
        "only_inspector": sorted(set(theirs) - set(mine)),
        "only_qnnsweep": sorted(set(mine) - set(theirs)),
        "furthest": furthest,
        "disagreeing": disagreeing,
    }


def _exact(figures: Mapping[str, float | None]) -> bool:
    """No error at all, or none beyond float32's rounding. Without one there is no SNR here, an infinite one there."""
    ratio = figures["snr_db"]
    return figures["mse"] == 0 or (ratio is not None and ratio >= EXACT_DB)


def show(found: Mapping[str, Any]) -> None:
    columns = ("seconds", "cpu_seconds", "with_imports_seconds", "peak_mib", "beyond_start_mib")
    titles = ("seconds", "CPU seconds", "with imports", "peak MiB", "beyond start")
    print(f"median (least to most) of {found['repeats']} fresh processes each\n")
    print(f"{'':10}" + "".join(f"{title:>26}" for title in titles))
    for side, figure in found["sides"].items():
        cells = (figure[column] for column in columns)
        print(
            f"{side:10}" + "".join(f"{c['median']:>10.2f} ({c['min']:.2f} to {c['max']:.2f})".rjust(26) for c in cells)
        )
    print()
    for key, value in found.items():
        if key.startswith("ratio"):
            print(f"{key:36}{value:6.3f}")
    same = found["agreement"]
    print(f"\n{same['operators']} operators on both sides, {same['exact']} exact; furthest apart: {same['furthest']}")
    print(f"only the Inspector: {same['only_inspector']}; only qnnsweep: {same['only_qnnsweep']}")
    print("\n".join(["the two disagree:", *same["disagreeing"]]) if same["disagreeing"] else "the two agree")


if __name__ == "__main__":
    sys.exit(main())
