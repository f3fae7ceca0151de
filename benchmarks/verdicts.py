"""What size of change is found how soon, and how often nothing is taken for something: many histories of one series.

Each history is 60 nights of a latency with normal noise and a step on night 40, judged night by night as a sweep does.
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
    arguments = parser.parse_args()
    noise = np.random.default_rng(0)
    told: dict[str, Any] = {}
    for sigma in (0.005, 0.015, 0.03):
        for size in (0.0, 0.05, 0.08, 0.12, 0.2):
            alarms = [regressed(sigma, size, noise) for _ in range(arguments.histories)]
            found = np.mean([bool({CHANGED, CHANGED + 1} & set(nights)) for nights in alarms])
            false = sum(night < CHANGED or size == 0 for nights in alarms for night in nights)
            judged = arguments.histories * (NIGHTS if size == 0 else CHANGED)
            key = f"noise {100 * sigma:g} %, change {100 * size:g} %"
            told[key] = {"found_in_time": float(found), "false_per_1000_nights": 1000 * false / judged}
            print(
                f"{key:28} found in time {100 * found:5.1f} %, false alarms {1000 * false / judged:.2f} in 1,000 nights"
            )
    if arguments.json:
        print(json.dumps(told))


def regressed(sigma: float, size: float, noise: np.random.Generator) -> list[int]:
    """The nights on which a latency with this noise, and this step, is said to have regressed."""
    nights: list[Night] = []
    found: list[int] = []
    for number in range(NIGHTS):
        value = (1 + size * (number >= CHANGED)) * (1 + float(noise.normal(0, sigma)))
        night = Night(run=str(number), value=value, passed=True)
        answer = assess(nights, night, LATENCY, TrendConfig().floors.latency_p50_ms, TrendConfig())
        nights.append(replace(night, verdict=answer.verdict, first_bad_run=answer.first_bad_run))
        found += [number] if answer.verdict == "regressed" else []
    return found


if __name__ == "__main__":
    main()
