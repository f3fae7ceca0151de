"""Tests the data of the report's figures, and the regressions of a page."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest

from qnnsweep.tasks.report.figures import (
    MEASURES,
    budget_of_page,
    causes,
    latency,
    measured,
    trends_of_page,
    with_times,
    without_budget,
)
from qnnsweep.tasks.report.page import render
from tests.sample_tables import CHANGED, LOGS, NIGHTS, RUN, nightly, sweep, trends
from tests.sample_tables import cell as cell_of
from tests.sample_tables import measured as sample_measures

EXECUTED = {
    "program": "shipping", "event": "Method::execute", "kind": "program", "unit": "us", "count": 4, "operators": [],
    "p10": 10.3, "p50": 12.0, "p90": 17.2, "mean": 13.25, "raw": [10.0, 11.0, 13.0, 19.0], "counted_in": [],
}  # fmt: skip


def counted(operators: list[str], p50: float, counted_in: list[str], **facts: Any) -> dict[str, Any]:
    event = {"program": "profile", "event": "…", "kind": "operator", "unit": "cycles", "p50": p50}
    return event | {"operators": operators, "counted_in": counted_in} | facts


def test_a_cell_has_every_measure_of_the_matrix() -> None:
    cell = {
        "final_difference": "finite",
        "final_snr_db": 30.5,
        "final_cosine": 0.99,
        "top1_agreement": 0.875,
        "latency_p50_ms": 2.5,
        "timed_on": "device",
    }
    cell |= {"pte_bytes": 2048, "operators_compared": 7, "operators_total": 28}
    measures = measured(cell)
    assert measures == {"snr": 30.5, "cosine": 0.99, "top1": 87.5, "latency": 2.5, "size": 2.0, "coverage": 25.0}
    assert list(measures) == [measure.name for measure in MEASURES]
    assert measured(cell | {"timed_on": "simulator"})["latency"] is None


def test_a_measure_that_is_not_defined_is_null_and_not_zero() -> None:
    cell = dict.fromkeys(
        (
            "final_difference",
            "final_snr_db",
            "final_cosine",
            "top1_agreement",
            "latency_p50_ms",
            "timed_on",
            "pte_bytes",
        )
    )
    assert set(measured(cell | {"operators_compared": None, "operators_total": None}).values()) == {None}


def test_equal_outputs_are_the_best_of_the_matrix_and_infinite_noise_is_the_worst() -> None:
    cell = cell_of("m", "s", "c", **sample_measures(Random(1), 30.0)) | {"final_snr_db": None}
    assert measured(cell | {"final_difference": "none"})["snr"] == math.inf
    assert measured(cell | {"final_difference": "infinite"})["snr"] == -math.inf


def test_a_page_has_the_totals_of_every_final_output_and_its_largest_operators() -> None:
    def share(output: int, operator: str | None, value: float | None) -> dict[str, Any]:
        return {"output_index": output, "operator": operator, "share": value}

    first = [share(0, None, 0.75), share(0, None, 0.25), share(0, "a", 0.125), share(0, "b", 0.5), share(0, "c", None)]
    second = [share(1, None, None), share(1, "a", 0.0625)]
    assert budget_of_page([*first, *second], 1) == [*first[:2], first[3], *second]
    assert budget_of_page(first, 2) == [*first[:2], first[3], first[2]]


@pytest.mark.parametrize(
    ("cell", "replayed", "words"),
    [
        ({"final_difference": None, "operators_compared": None}, False, None),
        ({"final_difference": "finite", "operators_compared": None}, False, "no operator was compared"),
        ({"final_difference": "finite", "operators_compared": 5}, False, "measure.replay"),
        ({"final_difference": "finite", "operators_compared": 5}, True, "measure.budget"),
    ],
)
def test_a_cell_without_a_budget_has_the_reason(cell: dict[str, Any], replayed: bool, words: str | None) -> None:
    operators = [{"introduced_mse": None, "introduced_differing": 0 if replayed else None}]
    reason = without_budget(cell, operators)
    assert (words is None) == (reason is None)
    assert reason is None or words in reason


def test_latencies_are_counted_in_bins_of_equal_width() -> None:
    assert latency([counted(["a"], 1.0, []), EXECUTED | {"raw": EXECUTED["raw"] * 5}]) == {
        "unit": "us", "count": 4, "p10": 10.3, "p50": 12.0, "p90": 17.2, "mean": 13.25,
        "low": 10.0, "high": 19.0, "bins": [5, 0, 5, *[0] * 3, 5, *[0] * 12, 5],
    }  # fmt: skip


def test_a_few_latencies_have_no_histogram() -> None:
    assert latency([EXECUTED]) is None


def test_a_cell_that_was_never_executed_has_no_latencies() -> None:
    assert latency([]) is None
    assert latency([EXECUTED | {"program": "profile"}]) is None


def test_an_operator_has_the_time_of_its_event_or_the_operators_that_include_it() -> None:
    profile = [
        counted(["pool", "getitem"], 40.0, []),
        counted(["conv"], 0.0, ["relu"]),
        counted(["softmax"], 3.5, [], kind="kernel", program="shipping", unit="us"),
        counted(["relu"], 7.0, [], program="shipping"),
    ]
    rows = [{"operator": name} for name in ("pool", "conv", "softmax", "relu")]
    assert with_times(rows, profile) == [
        {"operator": "pool", "took_p50": 40.0, "took_unit": "cycles", "took_with": ["getitem"], "counted_in": []},
        {"operator": "conv", "took_p50": 0.0, "took_unit": "cycles", "took_with": [], "counted_in": ["relu"]},
        {"operator": "softmax", "took_p50": 3.5, "took_unit": "us", "took_with": [], "counted_in": []},
        {"operator": "relu", "took_p50": None, "took_unit": None, "took_with": [], "counted_in": None},
    ]


def test_operators_without_events_are_unchanged() -> None:
    assert with_times([{"operator": "conv"}], [EXECUTED]) == [{"operator": "conv"}]


def test_a_page_has_all_series_of_a_cell_and_the_changed_series_of_its_operators() -> None:
    named = [(None, "steady"), ("a", "steady"), ("b", "improved"), ("c", "regressed"), (None, "still_bad")]
    rows = [{"operator": operator, "step": None, "verdict": verdict} for operator, verdict in named]
    steps = [{"operator": None, "step": "step 1", "verdict": verdict} for verdict in ("steady", "still_bad")]
    assert [(row["operator"] or row["step"], row["verdict"]) for row in trends_of_page([*steps, *rows])] == [
        ("c", "regressed"), (None, "still_bad"), ("step 1", "still_bad"), ("b", "improved"), (None, "steady"),
    ]  # fmt: skip


def test_regressions_are_grouped_by_cause_the_latest_night_first() -> None:
    first = {"first_bad_run": "night-1", "changed": ["qnn"]}
    second = {"first_bad_run": "night-2", "changed": []}
    assert causes([({"number": 0}, [first, second]), ({"number": 1}, [first])]) == [
        {"first_bad_run": "night-2", "changed": (), "cells": [({"number": 0}, [second])]},
        {
            "first_bad_run": "night-1",
            "changed": ("qnn",),
            "cells": [({"number": 0}, [first]), ({"number": 1}, [first])],
        },
    ]


@pytest.fixture(scope="module")
def with_trends() -> str:
    return render(RUN, sweep(nightly()) | {"trends": trends(nightly())}, LOGS)


def test_a_page_with_regressions_begins_with_them_and_the_changes(with_trends: str) -> None:
    assert '<a href="#regressions">3 of 24 possible cells regressed</a>' in with_trends
    section = with_trends[with_trends.index('<section id="regressions"') : with_trends.index('id="filter"')]
    assert section.count(NIGHTS[-3]) == 1
    assert [f"#cell-{number}-trends" in section for number in range(5, 10)] == [False, True, True, True, False]
    assert [change for change in CHANGED if f"<li>{change}</li>" not in section] == []
    assert "introduced_snr_db of aten_convolution_default_21 <b>12.5</b> after 41 dB" in section


def test_a_run_without_trends_has_a_remark_and_no_section_of_them() -> None:
    page = render(RUN, sweep(nightly()), LOGS)
    assert "this run has no table of trends" in page
    assert "regressed</a>" not in page
    assert 'data-table="trends"' not in page
