"""A benchmark of the delay and the false alarms of verdicts per size of a change, on many histories of a series.

Each history has 60 nights of a latency with normal noise and a step on night 40, with a verdict for every night.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from conf.schema import TrendConfig
from tasks.numerics.trend import SERIES, Night, assess

NIGHTS, CHANGED = 60, 40
LATENCY = SERIES["latency_p50_ms"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=300)
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line of stdout")
    options = parser.parse_args()
    noise = np.random.default_rng(0)
    result: dict[str, Any] = {}
    for sigma in (0.005, 0.015, 0.03):
        for size in (0.0, 0.05, 0.08, 0.12, 0.2):
            alarms = [regressed(sigma, size, noise) for _ in range(options.histories)]
            in_time = np.mean([bool({CHANGED, CHANGED + 1} & set(nights)) for nights in alarms])
            false = sum(night < CHANGED or size == 0 for nights in alarms for night in nights)
            count = options.histories * (NIGHTS if size == 0 else CHANGED)
            key = f"noise {100 * sigma:g} %, change {100 * size:g} %"
            result[key] = {"found_in_time": float(in_time), "false_per_1000_nights": 1000 * false / count}
            print(f"{key:28} found in time {100 * in_time:5.1f} %, {1000 * false / count:.2f} false alarms in 1,000")
    if options.json:
        print(json.dumps(result))


def regressed(sigma: float, size: float, noise: np.random.Generator) -> list[int]:
    """Return the nights on which a latency with this noise and this step is reported as regressed."""
    nights: list[Night] = []
    regressions: list[int] = []
    for number in range(NIGHTS):
        value = (1 + size * (number >= CHANGED)) * (1 + float(noise.normal(0, sigma)))
        night = Night(run=str(number), value=value, passed=True)
        assessment = assess(nights, night, LATENCY, TrendConfig().floors.latency_p50_ms, TrendConfig())
        nights.append(replace(night, verdict=assessment.verdict, first_bad_run=assessment.first_bad_run))
        regressions += [number] if assessment.verdict == "regressed" else []
    return regressions


if __name__ == "__main__":
    main()
