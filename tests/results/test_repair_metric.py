"""A repair whose target is a metric of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from qnnsweep.conf.repair import TargetConfig
from qnnsweep.conf.schema import Request
from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.comparison.metrics import metric_template
from qnnsweep.tasks.records import MetricValue
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.results.repair import measurement, shortfalls, uncertain
from qnnsweep.tasks.results.repair_rows import certificate_rows, repair_rows
from tests.results.test_repair_search import BEFORE, FINER_WEIGHTS, UNDAMAGED, WIDER_RANGE, Cells, searched, text

METRIC = "own:number"
TARGET = TargetConfig(metric=METRIC, metric_at_least=0.75)


def values(*of_samples: float | str | None, output: int = 0) -> list[MetricValue]:
    """Return the rows of an output. A text is an error of the metric."""
    subjects = [metric_template(None, output, sample, "device", "eager") for sample in range(len(of_samples))]
    return [
        replace(subject, metric=METRIC, **{"problem" if isinstance(value, str) else "value": value})
        for subject, value in zip(subjects, of_samples, strict=True)
    ]


def with_rows(cell: CellResult, target: TargetConfig, rows: Sequence[MetricValue]) -> CellResult:
    if cell.comparison is None:
        return cell
    elsewhere = replace(rows[0], metric="mse", value=9e9), replace(rows[0], rung="edge", value=9e9)
    comparison = replace(cell.comparison, metrics=(*elsewhere, *rows))
    return replace(cell, request=replace(cell.request, target=target), comparison=comparison)


class Valued(Cells):
    """Cells whose metric is 0.25 before the repair, and with other schemes as `metric` says."""

    def __init__(self, request: Request, snr_db: Sequence[tuple[SchemeConfig, float]], **metric: float) -> None:
        super().__init__(request, snr_db)
        schemes = {"finer": FINER_WEIGHTS, "wider": WIDER_RANGE, "both": UNDAMAGED}
        self._values = {text(schemes[name]): value for name, value in metric.items()}

    def measure(self, tried: SchemeConfig, aim: TargetConfig | None) -> list[CellResult]:
        value = self._values.get(text(tried), 0.25)
        return [with_rows(cell, TARGET, values(value, value)) for cell in super().measure(tried, aim)]


def test_a_step_is_accepted_if_the_metric_gets_nearer_to_its_limit(planned: Request) -> None:
    """The SNR falls with finer weights, and then rises with a wider range, by which the metric falls again."""
    schemes = [(BEFORE, 20.0), (FINER_WEIGHTS, 15.0), (UNDAMAGED, 30.0)]
    search, steps = searched(Valued(planned, schemes, finer=0.5, both=0.375), TARGET)
    assert [(step.accepted, step.why) for step in steps[:3]] == [
        (True, "the scheme before the repair"),
        (True, f"{METRIC} gets nearer to its limit"),
        (False, f"{METRIC} gets farther from its limit"),
    ]
    assert search.reason.endswith(f"; {METRIC} is 0.5, the target is at least 0.75")
    rows = list(repair_rows("run", steps))
    assert [row.metric for row in rows[:3]] == [0.25, 0.5, 0.375]


def test_where_the_metric_stays_the_same_the_snr_decides(planned: Request) -> None:
    schemes = [(BEFORE, 20.0), (FINER_WEIGHTS, 30.0), (UNDAMAGED, 25.0)]
    search, steps = searched(Valued(planned, schemes, both=0.25), TARGET)
    assert [step.accepted for step in steps[:3]] == [True, True, False]
    assert search.accepted.why == "the mean SNR rises"


def test_a_metric_that_is_reached_is_certified_by_its_interval(planned: Request) -> None:
    cells = Valued(planned, [(BEFORE, 20.0), (FINER_WEIGHTS, 30.0)], finer=0.75)
    search, _ = searched(cells, TARGET)
    assert (search.reached, search.reason) == (True, "the target is reached")
    before, after = search.steps[0], search.accepted
    assert [(row.side, row.metric, row.metric_low, row.metric_high) for row in certificate_rows(
        "run", before, after, [0, 1], 0
    )] == [("before", 0.25, 0.25, 0.25), ("after", 0.75, 0.75, 0.75)]  # fmt: skip
    for second, reason in (
        (0.75, "the target is reached; certified on 2 unseen samples"),
        (0.8, "may be 0.7"),
        (0.6, "is 0.65"),
    ):
        cells = [with_rows(cell, TARGET, values(0.7 if second != 0.75 else 0.75, second)) for cell in after.complete]
        again = replace(search, steps=[before, replace(after, complete=cells)])
        again.certify([0, 1])
        assert again.reached is (second == 0.75)
        assert reason in again.reason


@pytest.mark.parametrize(
    ("rows", "limits", "missing"),
    [
        (values(0.5, 1.0), {"metric_at_least": 0.75}, None),
        (values(0.5, 1.0), {"metric_at_least": 0.8}, f"{METRIC} is 0.75, the target is at least 0.8"),
        (values(0.5, 1.0), {"metric_at_most": 0.75}, None),
        (values(0.5, 1.0), {"metric_at_most": 0.5}, f"{METRIC} is 0.75, the target is at most 0.5"),
        (values(0.5, None), {"metric_at_least": 0.6}, f"{METRIC} is 0.5, the target is at least 0.6"),
        (values(0.0, 0.0) + values(1.0, None, output=1), {"metric_at_least": 0.3},
         f"{METRIC} is 0.25, the target is at least 0.3"),
        (values(None, None), {"metric_at_most": 1.0}, f"{METRIC} is not defined: it has no value for any sample"),
        (values(1.0, "KeyError: 3"), {"metric_at_most": 1.0}, f"{METRIC} is not defined: KeyError: 3"),
    ],
)  # fmt: skip
def test_the_mean_over_the_samples_counts_and_a_metric_that_fails_reaches_nothing(
    planned: Request, rows: list[MetricValue], limits: dict[str, Any], missing: str | None
) -> None:
    target = TargetConfig(metric=METRIC, **limits)
    (cell,) = Cells(planned, [(BEFORE, 20.0)]).measure(BEFORE, None)
    reached = measurement(with_rows(cell, target, rows))
    assert reached is not None
    assert next(shortfalls(reached, target), None) == missing


def test_a_bound_of_the_interval_beyond_the_limit_is_a_doubt(planned: Request) -> None:
    (cell,) = Cells(planned, [(BEFORE, 20.0)]).measure(BEFORE, None)
    for target, doubt in (
        (TargetConfig(metric=METRIC, metric_at_least=0.5), f"{METRIC} may be 0, the target is at least 0.5"),
        (TargetConfig(metric=METRIC, metric_at_most=0.5), f"{METRIC} may be 1, the target is at most 0.5"),
    ):
        reached = measurement(with_rows(cell, target, values(0.0, 1.0)))
        assert reached is not None
        assert list(uncertain(reached, target)) == [doubt]
