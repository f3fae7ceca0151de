"""A benchmark of queries over all nights, compared with plain pandas.read_parquet over the same files.

Writes a synthetic history into a temporary folder. Both sides alternate over the newest --plain-nights nights, because
plain pandas cannot hold the operators of 1,000 nights; qnnsweep is also measured over all. The folder is removed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from qnnsweep.conf.names import AXES
from qnnsweep.conf.schema import TrendConfig
from qnnsweep.flows.runs.history import trends
from qnnsweep.tasks.numerics.series import SERIES
from qnnsweep.tasks.numerics.trend import history_nights
from qnnsweep.tasks.records.tables import CELL_COLUMNS
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.query import select
from qnnsweep.tasks.storage.store import Store
from tests.flows.runs.synthetic_history import HEALTHY, run_of

SCHEMES, SOCS = ("8a8w", "16a8w", "fp16", "16a4w", "8a4w"), ("SM8350", "SM8450", "SM8550", "SM8650", "SM8750")
KEY = list(AXES)
NOISE = {"final_snr_db": 0.05, "latency_p50_ms": 0.03, "snr_db": 0.3, "introduced_snr_db": 0.3, "effect_snr_db": 0.3}
COMPARED = history_nights(TrendConfig())

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nights", type=int, default=1000)
    parser.add_argument("--cells", type=int, default=500)
    parser.add_argument("--operators", type=int, default=100, help="operators per cell")
    parser.add_argument("--plain-nights", type=int, default=100, help="nights over which the two sides are compared")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per side and query, in alternation")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line of stdout")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qnnsweep-history-") as folder:
        result = measure(Path(folder), options)
    for key, value in result.items():
        print(f"{key:34} {value:,.3f}" if isinstance(value, float) else f"{key:34} {value:,}")
    if options.json:
        print(json.dumps(result))


def measure(root: Path, options: argparse.Namespace) -> dict[str, Any]:
    start = time.perf_counter()
    cells, operators = write_history(root, options.nights, options.cells, options.operators)
    result: dict[str, Any] = {
        "nights": options.nights,
        "cells": options.cells,
        "operators": options.operators,
        "history_bytes": sum(file.stat().st_size for file in root.rglob("*.parquet")),
        "writing_s": time.perf_counter() - start,
    }
    store = Store(root)
    runs = [run_of(night) for night in range(options.nights)]
    newest = runs[-options.plain_nights :]
    tonight, cell, operator = (
        run_of(options.nights),
        cells[len(cells) // 2],
        operators[options.operators // 2]["operator"],
    )
    selected = {name: {cell[name]} for name in ("model", "scheme", "soc")}

    def ours_cell(nights: list[str]) -> int:
        return len(select(store, "cells", ["run_id", "final_snr_db"], where=selected, runs=set(nights)))

    def ours_operator(nights: list[str]) -> int:
        where = selected | {"operator": {operator}}
        return len(select(store, "operators", ["run_id", "snr_db", "introduced_snr_db"], where=where, runs=set(nights)))

    def ours_verdicts(_: list[str]) -> int:
        return len(trends(store, tonight, cells, operators, TrendConfig()))

    def plain_cell(nights: list[str]) -> int:
        frame = pd.read_parquet([part(root, "cells", run) for run in nights])
        return int(is_cell(frame, cell).sum())

    def plain_operator(nights: list[str]) -> int:
        columns = ["run_id", "model", "scheme", "soc", "operator", "snr_db", "introduced_snr_db"]
        frame = pd.read_parquet([part(root, "operators", run) for run in nights], columns=columns)
        return int((is_cell(frame, cell) & (frame["operator"] == operator)).sum())

    def plain_verdicts(nights: list[str]) -> int:
        """Compute only the baselines: median and MAD of every series of every cell."""
        frame = pd.read_parquet([part(root, "cells", run) for run in nights[-COMPARED:]])
        series = [name for name in SERIES if name in frame]
        groups = frame.groupby(KEY, observed=True)[series]
        mad = (frame[series] - groups.transform("median")).abs().groupby([frame[name] for name in KEY]).median()
        return int(mad.size)

    queries: dict[str, tuple[Callable[[list[str]], int], Callable[[list[str]], int]]] = {
        "cell": (ours_cell, plain_cell),
        "operator": (ours_operator, plain_operator),
        "verdicts": (ours_verdicts, plain_verdicts),
    }
    for name, (ours, plain) in queries.items():
        pairs = [(timed(ours, newest), timed(plain, newest)) for _ in range(options.rounds)]
        seconds, plain_seconds = (statistics.median(side) for side in zip(*pairs, strict=True))
        result |= {f"{name}_s": seconds, f"{name}_plain_s": plain_seconds}
        result[f"{name}_ratio"] = seconds / plain_seconds
        result[f"{name}_all_nights_s"] = statistics.median(timed(ours, runs) for _ in range(options.rounds))
        result[f"{name}_rows"] = ours(runs)
    result["slowest_s"] = max(result[f"{name}_all_nights_s"] for name in queries)
    result["ratio"] = max(result[f"{name}_ratio"] for name in ("cell", "operator"))
    return result


def timed(query: Callable[[list[str]], int], runs: list[str]) -> float:
    start = time.perf_counter()
    if query(runs) == 0:
        raise SystemExit("a query returned no rows")
    return time.perf_counter() - start


def is_cell(frame: pd.DataFrame, cell: Row) -> pd.Series:
    return (frame["model"] == cell["model"]) & (frame["scheme"] == cell["scheme"]) & (frame["soc"] == cell["soc"])


def write_history(root: Path, nights: int, cells: int, operators: int) -> tuple[list[Row], list[Row]]:
    """Write the tables of every night; return the rows of the following night, which is not written."""
    store, noise = Store(root), np.random.default_rng(0)
    rows_of = {"cells": cell_rows(cells), "operators": operator_rows(cell_rows(cells), operators)}
    first: dict[str, pa.Table] = {}
    for table, rows in rows_of.items():  # the other nights are derived from the first night
        tables.write(store, run_of(0), table, rows)
        first[table] = pq.ParquetFile(part(root, table, run_of(0))).read()
    for night in range(1, nights):
        for table, rows in first.items():
            publish(root, run_of(night), table, changed(rows, run_of(night), noise))
    tonight = run_of(nights)
    for rows in rows_of.values():
        rows[:] = [row | {"run_id": tonight} for row in rows]
    trend_rows = trends(store, tonight, rows_of["cells"], rows_of["operators"], TrendConfig())
    tables.write(store, tonight, "trends", trend_rows)
    # A new verdict reads the verdicts of these nights.
    past = pq.ParquetFile(part(root, "trends", tonight)).read()
    for night in range(max(0, nights - COMPARED), nights):
        publish(root, run_of(night), "trends", changed(past, run_of(night), noise))
    return rows_of["cells"], rows_of["operators"]


def changed(rows: pa.Table, run_id: str, noise: np.random.Generator, sigmas: Mapping[str, float] = NOISE) -> pa.Table:
    """Return a copy of the rows for another night: with the id `run_id`, and with new noise per column of `sigmas`."""
    names = pa.array([run_id] * rows.num_rows, pa.string())
    rows = rows.set_column(rows.schema.get_field_index("run_id"), "run_id", names)
    for column, sigma in sigmas.items():
        if column in rows.column_names:
            values = rows[column].to_numpy() + noise.normal(0, sigma, rows.num_rows)
            rows = rows.set_column(rows.schema.get_field_index(column), column, pa.array(values, pa.float64()))
    return rows


def publish(root: Path, run_id: str, table: str, rows: pa.Table) -> None:
    path = part(root, table, run_id)
    path.parent.mkdir(parents=True)
    path.write_bytes(tables.encoded(rows.schema, [rows]))


def part(root: Path, table: str, run_id: str) -> Path:
    return root / "tables" / table / f"run={run_id}" / "part.parquet"


def cell_rows(count: int) -> list[Row]:
    empty = dict.fromkeys(tables.schema_of("cells").names) | HEALTHY | {"run_id": run_of(0)}
    cells = [
        {"model": f"model_{number // (len(SCHEMES) * len(SOCS)):03}", "scheme": scheme, "soc": soc}
        for number in range(0, count, len(SCHEMES) * len(SOCS))
        for scheme in SCHEMES
        for soc in SOCS
    ]
    return [empty | cell for cell in cells[:count]]


def operator_rows(cells: list[Row], count: int) -> list[Row]:
    empty = dict.fromkeys(tables.schema_of("operators").names)
    rows: list[Row] = []
    for cell in cells:
        names = {name: cell[name] for name in CELL_COLUMNS}
        for index in range(count):
            row = {
                "operator_index": index,
                "operator": f"aten_convolution_default_{index}",
                "target": "aten.convolution.default",
                "debug_handle": index + 1,
                "output_index": 0,
                "module_path": f"blocks.{index // 4}.conv",
                "stack_trace": f"model.py, line {100 + index}, in forward",
                "source_nodes": [f"conv2d_{index}"],
                "shape": [1, 32, 56, 56],
                "dtype": "float32",
                "scale": [0.01 * (index + 1)],
                "zero_point": [index],
                "delegated": True,
                "subgraph": 0,
                "reference": "edge",
                "sample": 0,
                "status": "compared",
                "mse": 1e-6 * (index + 1),
                "max_abs": 1e-3 * (index + 1),
                "cosine": 0.999,
                "snr_db": 60.0 - 0.3 * index,
                "introduced_snr_db": 80.0,
                "effect_snr_db": 70.0,
                "verdict": "within_grid",
            }
            rows.append(empty | names | row)
    return rows


if __name__ == "__main__":
    main()
