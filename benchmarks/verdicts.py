"""A benchmark of the delay and the false alarms of verdicts, on many simulated histories, each with its own verdicts.

Prints each number with its requirement. Noise has a standard deviation of 1 and the series has a floor of 0, which is
the worst case, except for a count that flickers and for operators, which have their own series and their floors.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.history import NOISE as HISTORY_NOISE
from benchmarks.history import cell_rows, changed, operator_rows, part, publish
from qnnsweep.conf.schema import TrendConfig
from qnnsweep.flows.runs.history import trends
from qnnsweep.tasks.numerics.series import SERIES, Series
from qnnsweep.tasks.numerics.trend import BAD, Night, assess, history_nights
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from tests.flows.runs.synthetic_history import run_of

CONFIG = TrendConfig()
NIGHTS = 150
JUDGED = NIGHTS - CONFIG.least_nights  # the first nights get no verdict
CHANGED = history_nights(CONFIG)  # the night of a change: the baseline has its full length
SNR, COUNT = SERIES["final_snr_db"], SERIES["operators_introduced"]
YOUNG = ((6, 12), (4, 12), (4, 20), (3, 20))
"""Steps in a young series: the size, and the night with which the step begins."""
Noise = Callable[[np.random.Generator, int], np.ndarray]
NOISE: dict[str, Noise] = {
    "normal": lambda chance, count: chance.standard_normal(count),
    "laplace": lambda chance, count: chance.laplace(0, 1 / np.sqrt(2), count),
    "t3": lambda chance, count: chance.standard_t(3, count) / np.sqrt(3),
    "quantized to 0.5": lambda chance, count: np.rint(chance.standard_normal(count) / 0.5) * 0.5,
    "quantized to 2": lambda chance, count: np.rint(chance.standard_normal(count) / 2) * 2,
    "flicker": lambda chance, count: (chance.random(count) < 0.05).astype(float),
    "autocorrelated": lambda chance, count: autocorrelated(chance, count),
}
"""The kinds of noise. A count that flickers is 1 on one of twenty nights, and 0 on the others."""
REQUIRED: dict[str, tuple[float, float]] = {
    "false_alarms_per_1000_normal": (0, 0.2),
    "false_alarms_per_1000_laplace": (0, 0.2),
    "false_alarms_per_1000_t3": (0, 0.2),
    "false_alarms_per_1000_quantized": (0, 0.2),
    "false_alarms_per_1000_flicker": (0, 0.2),
    "false_alarms_per_1000_autocorrelated": (0, 2.6),
    "told_2sd_within_10_nights": (0.8, 1),
    "told_4sd_within_2_nights": (0.9, 1),
    "told_6sd_night_12_within_10": (0.85, 1),
    "told_4sd_night_20_within_10": (0.95, 1),
    "blinded_of_100": (0, 0),
    "late_returns_of_100_exact": (0, 0),
    "false_alarms_50000_operators": (0, 1),
}
"""The bounds of each required number."""
CELLS, OPERATORS = 500, 100
OPERATOR_NOISE = {**HISTORY_NOISE, "snr_db": 1.0, "introduced_snr_db": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series-nights", type=int, default=300_000, help="simulated nights per kind of noise")
    parser.add_argument("--histories", type=int, default=1000, help="simulated histories per size of a change")
    parser.add_argument("--operator-nights", type=int, default=3, help="nights of 50,000 operators in worse cells")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line of stdout")
    options = parser.parse_args()
    with ProcessPoolExecutor(options.processes) as pool:
        operators = pool.submit(false_operators, options.operator_nights)
        result = false_alarms(pool, options.series_nights) | delays(pool, options.histories)
        result |= {"blinded_of_100": blinded(), "late_returns_of_100_exact": late_returns()}
        result |= operators.result()
    for key, number in result.items():
        bounds = REQUIRED.get(key)
        required = "" if bounds is None else f"at least {bounds[0]:g}" if bounds[0] else f"at most {bounds[1]:g}"
        missed = bounds is not None and not bounds[0] <= number <= bounds[1]
        print(f"{key:56} {number:8.3f}  {required:12} {'MISSED' if missed else ''}".rstrip())
    if options.json:
        print(json.dumps(result))


def autocorrelated(chance: np.random.Generator, count: int) -> np.ndarray:
    """Return noise of which each night is half the night before, as that of a phone that is warm for days."""
    values = chance.standard_normal(count)
    for night in range(1, count):
        values[night] = 0.5 * values[night - 1] + np.sqrt(0.75) * values[night]
    return values


def verdicts(values: Sequence[float], series: Series, floor: float, inputs: str | None = None) -> list[str]:
    """Return the verdict on each night of a history. Each verdict is computed with the verdicts before it.

    `inputs`: those of all nights of a series without noise.
    """
    nights: list[Night] = []
    for number, value in enumerate(values):
        night = Night(run=f"{number:03}", value=value, passed=True, inputs=inputs)
        assessment = assess(nights[-history_nights(CONFIG) :], night, series, floor, CONFIG)
        nights.append(replace(night, verdict=assessment.verdict, first_bad_run=assessment.first_bad_run))
    return [str(night.verdict) for night in nights]


def false_alarms(pool: ProcessPoolExecutor, series_nights: int) -> dict[str, float]:
    """Return the number of reported regressions per 1,000 nights of series that do not change."""
    histories = series_nights // JUDGED
    parts = {kind: [pool.submit(alarms, kind, seed, histories // 20 + 1) for seed in range(20)] for kind in NOISE}
    rates = {
        kind: 1000 * sum(part.result() for part in counts) / (20 * (histories // 20 + 1) * JUDGED)
        for kind, counts in parts.items()
    }
    quantized = max(rate for kind, rate in rates.items() if kind.startswith("quantized"))
    rates |= {"quantized": quantized}
    return {f"false_alarms_per_1000_{kind.replace(' ', '_')}": rate for kind, rate in rates.items()}


def alarms(kind: str, seed: int, histories: int) -> int:
    chance = np.random.default_rng([seed, *kind.encode()])
    series, floor = (COUNT, CONFIG.floors.operators_introduced) if kind == "flicker" else (SNR, 0.0)
    return sum(
        verdicts(NOISE[kind](chance, NIGHTS).tolist(), series, floor).count("regressed") for _ in range(histories)
    )


def delays(pool: ProcessPoolExecutor, histories: int) -> dict[str, float]:
    """Return the shares of changes that are reported in time, in normal noise."""
    steps = {size: pool.submit(reports, histories, [-size] * (CONFIG.nights)) for size in (1, 2, 3, 4, 6)}
    drifts = {
        rate: pool.submit(reports, histories // 4, [-rate * night for night in range(1, 81)]) for rate in (0.05, 0.1)
    }
    result: dict[str, float] = {}
    early = {
        (size, before): pool.submit(reports, histories, [-size] * 10, before) for size in (2, 4) for before in (40, 60)
    }
    young = {(size, night): pool.submit(reports, histories, [-size] * 10, night - 1) for size, night in YOUNG}
    for size, future in steps.items():
        delay, count = future.result()
        for within in (2, 10):
            result[f"told_{size}sd_within_{within}_nights"] = float(np.mean(delay <= within))
        result[f"reports_of_{size}sd_in_30_nights"] = float(np.mean(count))
    for (size, before), future in early.items():
        within = {2: 10, 4: 2}[size]
        result[f"told_{size}sd_within_{within}_nights_after_{before}"] = float(np.mean(future.result()[0] <= within))
    for (size, night), future in young.items():
        result[f"told_{size}sd_night_{night}_within_10"] = float(np.mean(future.result()[0] <= 10))
    for rate, future in drifts.items():
        delay, _ = future.result()
        result[f"told_drift_of_{rate:g}sd_per_night"] = float(np.mean(delay < np.inf))
        result[f"median_delay_of_drift_of_{rate:g}sd_per_night"] = float(np.median(delay))
    return result


def blinded() -> int:
    """Return in how many of 100 histories a drop of 10 dB is not reported by its second night.

    One or two of the first three nights are bad, and then there are 10 to 80 good nights.
    """
    chance = np.random.default_rng(0)
    missed = 0
    for _ in range(100):
        good, bad = int(chance.integers(10, 81)), int(chance.integers(1, 3))
        values = np.full(3 + good + 2, 31.0)
        values[chance.permutation(3)[:bad]] = chance.uniform(5, 28, bad)
        values[-2:] -= 10
        values += chance.choice([0.0, 0.01, 0.1, 0.3]) * chance.standard_normal(len(values))
        missed += "regressed" not in verdicts(values.tolist(), SNR, CONFIG.floors.final_snr_db)[-2:]
    return missed


def late_returns() -> int:
    """Return in how many of 100 series without noise a regression that returns is not reported at once."""
    chance = np.random.default_rng(0)
    missed = 0
    for _ in range(100):
        first, between, loss = int(chance.integers(1, 10)), int(chance.integers(1, 10)), chance.uniform(1.5, 20)
        values = [*[31.0] * first, 31.0 - loss, *[31.0] * between, 31.0 - loss]
        missed += verdicts(values, SNR, CONFIG.floors.final_snr_db, inputs="equal")[-1] != "regressed"
    return missed


def reports(histories: int, change: Sequence[float], before: int = CHANGED) -> tuple[np.ndarray, np.ndarray]:
    """Return, per history, the night after the change on which it is first reported, and the number of reports.

    `before`: the number of nights before the change.
    """
    chance = np.random.default_rng(0)
    delay, count = np.full(histories, np.inf), np.zeros(histories)
    for history in range(histories):
        values = chance.standard_normal(before + len(change))
        values[before:] += change
        after = verdicts(values.tolist(), SNR, 0.0)[before:]
        count[history] = after.count("regressed")
        if "regressed" in after:
            delay[history] = after.index("regressed") + 1
    return delay, count


def false_operators(nights: int) -> dict[str, float]:
    """Return the false alarms per night among 50,000 operators with 1 dB of noise: below steady and below worse cells.

    The nights of the worse cells follow each other. On a last night, 8 dB are lost by one operator of each cell.
    """
    chance = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="qnnsweep-verdicts-") as folder:
        store = Store(Path(folder))
        rows_of = {"cells": cell_rows(CELLS), "operators": operator_rows(cell_rows(CELLS), OPERATORS)}
        for table, rows in rows_of.items():
            tables.write(store, run_of(0), table, rows)
            first = pq.ParquetFile(part(Path(folder), table, run_of(0))).read()
            for night in range(1, CHANGED):
                publish(Path(folder), run_of(night), table, changed(first, run_of(night), chance, OPERATOR_NOISE))

        def rows_on(number: int, cell_loss: float, operator_loss: float = 0.0) -> dict[str, list[dict[str, Any]]]:
            """Return the rows of a night. The first operator of each cell has the operator loss."""
            rows = {table: [row | {"run_id": run_of(number)} for row in rows] for table, rows in rows_of.items()}
            for row in rows["cells"]:
                row["final_snr_db"] += float(chance.normal(-cell_loss, OPERATOR_NOISE["final_snr_db"]))
            for row in rows["operators"]:
                for column in ("snr_db", "introduced_snr_db"):
                    row[column] += float(chance.normal(-operator_loss * (row["operator_index"] == 0), 1.0))
            contents = trends(store, run_of(number), rows["cells"], rows["operators"], CONFIG)
            return rows | {"trends": contents}

        def operators(rows: Sequence[dict[str, Any]], verdicts: Sequence[str] = BAD) -> set[str]:
            return {
                f"{row['model']} {row['scheme']} {row['soc']} {row['operator']}"
                for row in rows
                if row["operator"] and row["verdict"] in verdicts
            }

        steady = rows_on(CHANGED, cell_loss=0.0)["trends"]
        lost = rows_on(CHANGED, cell_loss=5.0, operator_loss=8.0)["trends"]
        false: list[int] = []
        for number in range(CHANGED, CHANGED + nights):
            contents = rows_on(number, cell_loss=5.0)
            false.append(len(operators(contents["trends"], ["regressed"])))
            worse = sum(row["verdict"] in BAD and row["series"] == "final_snr_db" for row in contents["trends"])
            if worse != CELLS:
                raise SystemExit(f"{worse} of {CELLS} cells are worse")
            for table, rows in contents.items():
                tables.write(store, run_of(number), table, rows)
    first_operator = f" {rows_of['operators'][0]['operator']}"
    reported = {name for name in operators(lost) if name.endswith(first_operator)}
    return {
        "false_alarms_50000_operators_of_steady_cells": len(operators(steady)),
        "false_alarms_50000_operators": max(false),
        "told_500_operators_with_8db_less": len(reported) / CELLS,
        "false_alarms_beside_500_operators_with_8db_less": len(operators(lost) - reported),
    }


if __name__ == "__main__":
    main()
