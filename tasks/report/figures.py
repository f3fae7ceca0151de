"""The data of the report's figures: a cell's measures, error budget, latencies, times of operators, and trends."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qnnsweep.tasks.numerics.timing import EXECUTION
from qnnsweep.tasks.report.format import snr

Row = Mapping[str, Any]

LATENCY_BINS = 24
_FEWEST_LATENCIES = 20  # fewer have no distribution to look at
REGRESSED = ("regressed", "still_bad")
_TREND_VERDICTS = (*REGRESSED, "improved", "new", "undefined", "no_baseline", "steady")
TREND_COLUMNS = (
    *("series", "operator", "step", "unit", "value", "nights", "level", "noise", "floor", "verdict"),
    *("first_bad_run", "changed", "runs", "values"),
)
BUDGET_COLUMNS = (
    *("output_index", "output", "cause", "operator", "operator_index", "module_path"),
    *("share", "share_error", "alone_snr_db", "without_snr_db", "sample"),
)
DETAIL_COLUMNS = (
    *("operator_index", "sample", "unit", "largest_error", "histogram", "channel_axis", "channels", "channel_errors"),
    *("heat_rows", "heat_columns", "heat", "value_least", "value_largest", "grid_least", "grid_largest"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """A number by which the matrix can be coloured, between the bounds `low` and `high`.

    If a bound is None, the lowest or highest number in the run is used.
    """

    name: str
    title: str
    unit: str
    digits: int
    less_is_better: bool = False
    low: float | None = None
    high: float | None = None


MEASURES = (
    Measure(name="snr", title="lowest final SNR", unit="dB", digits=1, low=0.0, high=60.0),
    Measure(name="cosine", title="final cosine", unit="", digits=5, low=0.9, high=1.0),
    Measure(name="top1", title="top-1 agreement", unit="%", digits=1, low=50.0, high=100.0),
    Measure(name="latency", title="inference time on the device", unit="ms", digits=2, less_is_better=True),
    Measure(name="size", title="program size", unit="KiB", digits=0, less_is_better=True),
    Measure(name="coverage", title="operators compared", unit="%", digits=1, low=0.0, high=100.0),
)


def measured(cell: Row) -> dict[str, float | None]:
    """Return a cell's numbers, keyed by the names of the measures. A number that is not defined is None."""
    top1, size, total = cell["top1_agreement"], cell["pte_bytes"], cell["operators_total"]
    return {
        "snr": snr(cell["final_difference"], cell["final_snr_db"]),
        "cosine": cell["final_cosine"],
        "top1": None if top1 is None else 100 * top1,
        # The simulator's times for different SoCs say nothing about these SoCs.
        "latency": cell["latency_p50_ms"] if cell["timed_on"] == "device" else None,
        "size": None if size is None else size / 1024,
        "coverage": 100 * (cell["operators_compared"] or 0) / total if total else None,
    }


def budget_of_page(budget: Iterable[Row], most: int) -> list[Row]:
    """Return, per final output, the totals of all causes, and those `most` rows of operators with the largest share."""
    by_output: dict[int, list[Row]] = defaultdict(list)
    for row in budget:
        by_output[row["output_index"]].append(row)
    rows_of_page: list[Row] = []
    for rows in by_output.values():
        rows_of_page += [row for row in rows if row["operator"] is None]
        ranked = [row for row in rows if row["operator"] is not None and row["share"] is not None]
        rows_of_page += sorted(ranked, key=lambda row: -row["share"])[:most]
    return rows_of_page


def details_of_page(details: Iterable[Row], worst_operator: str | None, most: int) -> list[Row]:
    """Return the details of the `most` operators that matter most, the worst operator first."""
    return sorted(details, key=lambda row: row["operator"] != worst_operator)[:most]


def module_of(operator: str | None, operators: Iterable[Row]) -> str | None:
    """Return the module of an operator, which is empty for an operator outside all modules; None if it is not known."""
    return next((row["module_path"] for row in operators if row["operator"] == operator), None)


def without_budget(cell: Row, operators: Iterable[Row]) -> str | None:
    """Return why a cell has no error budget. None if the cell was not compared, so that it has no error either.

    `operators`: the cell's rows of the table `operators`.
    """
    if cell["final_difference"] is None:
        return None
    if not cell["operators_compared"]:
        return "No error budget: no operator was compared."
    if all(row["introduced_mse"] is None and row["introduced_differing"] is None for row in operators):
        return "No error budget: no operator was run again on the device's inputs (`measure.replay`)."
    return "No error budget: the configuration of the run excluded it (`measure.budget`)."


def latency(profile: Iterable[Row]) -> dict[str, Any] | None:
    """Return a histogram and percentiles of the shipping program's latencies; None if few inferences were logged."""
    row = next((row for row in profile if (row["program"], row["event"]) == ("shipping", EXECUTION)), None)
    if row is None or len(row["raw"]) < _FEWEST_LATENCIES:
        return None
    counts, edges = np.histogram(row["raw"], bins=min(LATENCY_BINS, len(row["raw"])))
    spread = {name: row[name] for name in ("unit", "count", "p10", "p50", "p90", "mean")}
    return spread | {"low": float(edges[0]), "high": float(edges[-1]), "bins": counts.tolist()}


def with_times(operators: Sequence[Row], profile: Iterable[Row]) -> list[dict[str, Any]]:
    """Return every operator's row with its time, or with the nodes whose cycles include the operator's work."""
    events: dict[str, Row] = {}
    for row in profile:
        inside = row["kind"] == "operator" and row["program"] == "profile"
        if inside or (row["kind"] == "kernel" and row["program"] == "shipping"):
            events |= dict.fromkeys(row["operators"] or (), row)
    if not events:
        return [dict(row) for row in operators]
    nothing = {"p50": None, "unit": None, "counted_in": None, "operators": ()}
    return [dict(row) | _took(events.get(row["operator"], nothing), row["operator"]) for row in operators]


def _took(event: Row, operator: str) -> dict[str, Any]:
    return {
        "took_p50": event["p50"],
        "took_unit": event["unit"],
        "took_with": [name for name in event["operators"] if name != operator],
        "counted_in": event["counted_in"],
    }


def trends_of_page(rows: Iterable[Row]) -> list[Row]:
    """Return a cell's series, worst verdict first. The series of a part is kept only if it regressed or improved."""
    selected = [row for row in rows if not _of_part(row) or row["verdict"] in (*REGRESSED, "improved")]
    return sorted(selected, key=lambda row: (_rank(row["verdict"]), _of_part(row)))


def _of_part(row: Row) -> bool:
    """Return whether a series is that of an operator or of a step."""
    return row["operator"] is not None or row["step"] is not None


def regressions(trends: Iterable[Row]) -> list[Row]:
    """Return those series of `trends_of_page` that regressed, in the same order."""
    return [row for row in trends_of_page(trends) if row["verdict"] in REGRESSED]


def causes(cells: Iterable[tuple[Any, Sequence[Row]]]) -> list[dict[str, Any]]:
    """Return the regressions, grouped by first bad night and by the changes of that night, the latest night first."""
    groups: dict[tuple[str | None, tuple[str, ...]], list[tuple[Any, list[Row]]]] = defaultdict(list)
    for cell, rows in cells:
        by_cause: dict[tuple[str | None, tuple[str, ...]], list[Row]] = defaultdict(list)
        for row in rows:
            by_cause[row["first_bad_run"], tuple(row["changed"] or ())].append(row)
        for cause, series in by_cause.items():
            groups[cause].append((cell, series))
    ordered = sorted(groups.items(), key=lambda group: group[0][0] or "", reverse=True)
    return [{"first_bad_run": run, "changed": changed, "cells": members} for (run, changed), members in ordered]


def _rank(verdict: str) -> int:
    return _TREND_VERDICTS.index(verdict) if verdict in _TREND_VERDICTS else 0
