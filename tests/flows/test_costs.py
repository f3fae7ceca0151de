"""What the work of cells costs: the forecast of a plan from earlier runs, and the estimate of what a run has left."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.names import CELL_STAGES
from qnnsweep.flows.forecasts.costs import EtaEstimate, ExpectedSeconds, Forecast, forecast, stages_of, work_label
from qnnsweep.tasks.results.digests import input_digests
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.prepared.choice import toolchain_of
from qnnsweep.tasks.toolchain.source_digest import code_digest
from tests import sample_tables
from tests.sample_tables import table

RUN = "20260101T220000Z-aaaa"
TIMES = {"export_s": 10.0, "quantize_s": 4.0, "edge_s": 6.0, "lower_s": 20.0, "execute_s": 30.0}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with one run: digits_cnn in 8a8w for two SoCs, one of which the compiler refused."""
    store = Store.at(str(tmp_path / "artifacts"))
    store.check_writable()
    (request,) = (planned.request for planned in load(["model=digits_cnn", "scheme=8a8w", "soc=SM8650"]).cells)
    versions: dict[str, Any] = asdict(toolchain_of(request.toolchain)[2])
    digests: dict[str, Any] = asdict(input_digests(request, code_digest(request.model)))
    compiled = sample_tables.cell("digits_cnn", "8a8w", "SM8650") | TIMES | versions | digests
    refused = sample_tables.cell("digits_cnn", "8a8w", "SM8750", outcome="failed", stage="lower") | {"export_s": 99.0}
    names = {name: compiled[name] for name in ("model", "scheme", "soc", "backend", "toolchain")}
    calls = [{"stage": "compare", "seconds": seconds} for seconds in (1.5, 2.5)]
    stages = [{"stage": stage, "seconds": 0.5, "device": "local"} for stage in ("bundle", "deploy", "collect")]
    without_names = {"stage": "compare", "seconds": 99.0, "toolchain": "default"}
    work = [without_names, *(names | row for row in (*calls, *stages))]
    for name, rows in (("cells", [compiled, refused]), ("work", work)):
        tables.write(store, RUN, name, [row | {"run_id": RUN} for row in table(name, rows)])
    return store


def planned(store: Store, *overrides: str) -> Forecast | None:
    return forecast(load([f"artifacts={store.location}", "limits.parallel=2", *overrides]))


def test_an_equal_cell_is_only_executed_and_compared(store: Store) -> None:
    assert planned(store, "soc=SM8650") == Forecast(compiled=[True], unknown=0, seconds=35.5)


@pytest.mark.parametrize(
    ("override", "cells"),
    [("soc=SM8750,SM8550", 2), ("scheme.observer=HistogramObserver", 1), ("model.calibration.count=9", 1)],
)
def test_a_cell_that_is_new_or_has_changed_takes_the_time_of_a_similar_one(
    store: Store, override: str, cells: int
) -> None:
    # The first execution begins after an export, a quantization, a share of the edge program, a lowering and a bundle.
    # A second cell is lowered meanwhile.
    seconds = 10.0 + 4.0 + 6.0 / cells + 20.0 + 0.5 + 31.0 * cells + 4.0
    assert planned(store, override) == Forecast(compiled=[False] * cells, unknown=0, seconds=seconds)


def test_a_cell_that_was_measured_costs_nothing_with_reuse_capture(store: Store) -> None:
    assert planned(store, "soc=SM8650", "reuse=capture") == Forecast(compiled=[True], unknown=0, seconds=0.0)


def test_without_a_similar_cell_there_is_no_estimate(store: Store) -> None:
    expected = planned(store, "soc=SM8650,SM8350", "scheme=8a8w,fp16")
    assert expected == Forecast(compiled=[True, False, False, False], unknown=1, seconds=None)


def test_without_a_run_there_is_no_forecast(tmp_path: Path) -> None:
    assert forecast(load([f"artifacts={tmp_path}/none"])) is None
    assert not list(tmp_path.iterdir())


SWEEP = ["model=digits_cnn", "scheme=8a8w,16a8w", "soc=SM8550,SM8650", "measure.cures=0"]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class PlayedSweep:
    """An estimate for digits_cnn in two schemes on two SoCs: one export, two quantizations, four of the rest."""

    def __init__(self, expected: ExpectedSeconds | None = None) -> None:
        self.clock = Clock()
        cells = load(SWEEP).cells
        self.eta = EtaEstimate(cells, expected, self.clock)
        self.requests = [cell.request for cell in cells]

    def do(self, stage: str, cell: int, seconds: float = 0.0, state: str = "done") -> None:
        label = work_label(stage, self.requests[cell])
        if state != "reused":
            self.eta.update(stage, label, "running")
        self.clock.now += seconds
        self.eta.update(stage, label, state)


@pytest.fixture
def played() -> PlayedSweep:
    return PlayedSweep()


def test_no_time_is_estimated_before_every_stage_has_run_once(played: PlayedSweep) -> None:
    for stage in CELL_STAGES[:-1]:
        played.do(stage, 0, 1.0)
    assert (played.eta.summary(), played.eta.seconds_left()) == ("0 of 4 cells", None)


def test_the_rest_is_estimated_by_the_mean_duration_of_each_stage(played: PlayedSweep) -> None:
    for stage in CELL_STAGES:
        played.do(stage, 0, 2.0)
    # One quantization, and three each of lower, bundle, deploy, execute, collect and compare.
    assert played.eta.seconds_left() == pytest.approx(2.0 * (1 + 3 * 6))
    assert played.eta.summary() == "1 of 4 cells, about 40 s left"


def test_the_estimate_assumes_the_concurrency_so_far(played: PlayedSweep) -> None:
    for stage in CELL_STAGES[:2]:
        played.do(stage, 0, 2.0)
    played.do("quantize", 2, 2.0)
    for stage in CELL_STAGES[2:]:
        for cell in (0, 1):
            played.eta.update(stage, work_label(stage, played.requests[cell]), "running")
        played.clock.now += 2.0
        for cell in (0, 1):
            played.eta.update(stage, work_label(stage, played.requests[cell]), "done")
    elapsed, busy = 2.0 * 9, 2.0 * (3 + 2 * 6)
    assert played.eta.seconds_left() == pytest.approx(2.0 * 2 * 6 * elapsed / busy)


@pytest.mark.parametrize(
    ("override", "tried"),
    [("scheme=8a8w", True), ("scheme=fp16", False), ("measure.cures=0", False), ("measure.budget=false", False)],
)
def test_a_cell_whose_changes_are_tried_ends_when_they_are_tried(override: str, tried: bool) -> None:
    (cell,) = load(["model=digits_cnn", "soc=SM8650", override]).cells
    eta = EtaEstimate([cell])
    for stage in CELL_STAGES:
        eta.update(stage, work_label(stage, cell.request), "done")
    assert (stages_of(cell.request)[-1], eta.ended) == (("cure", 0) if tried else ("compare", 1))
    eta.update("cure", work_label("cure", cell.request), "done")
    assert eta.ended == 1


def test_reused_work_has_ended_and_gives_no_duration(played: PlayedSweep) -> None:
    for cell in range(4):
        for stage in CELL_STAGES:
            played.do(stage, cell, state="reused")
    assert (played.eta.ended, played.eta.summary()) == (4, "4 of 4 cells")


def test_a_failure_ends_all_cells_that_depend_on_it_and_drops_the_work_of_these_cells_alone(
    played: PlayedSweep,
) -> None:
    played.do("export", 0, 1.0)
    played.do("quantize", 0, 1.0)
    played.do("quantize", 2, 1.0, state="failed")
    assert played.eta.ended == 2
    for stage in CELL_STAGES[2:]:
        played.do(stage, 0, 1.0)
    assert played.eta.ended == 3
    assert played.eta.seconds_left() == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "1 s"),
        (7.2, "7 s"),
        (52.0, "50 s"),
        (89.0, "90 s"),
        (90.0, "2 min"),
        (3600.0, "60 min"),
        (7000.0, "1.9 h"),
    ],
)
def test_the_time_left_is_rounded(seconds: float, words: str, played: PlayedSweep) -> None:
    for stage in CELL_STAGES:
        played.do(stage, 0, seconds / 19)
    assert played.eta.summary() == f"1 of 4 cells, about {words} left"


def test_an_impossible_cell_is_not_counted() -> None:
    cells = load(["model=digits_cnn", "scheme=8a8w,fp16", "soc=SM8350"]).cells
    assert EtaEstimate(cells).summary() == "0 of 1 cells"


def test_works_that_wait_for_a_core_do_not_shorten_the_estimate() -> None:
    """Forty models are exported one after the other, although the tasks of all exports have started."""
    clock = Clock()
    names = ",".join(f"m{n}" for n in range(40))
    overrides = ["model=digits_cnn", "soc=SM8650", "scheme=8a8w", f"model.name={names}", "measure.cures=0"]
    cells = load(overrides).cells
    eta = EtaEstimate(cells, clock=clock)

    def label(stage: str, cell: int) -> str:
        return work_label(stage, cells[cell].request)

    for cell in range(40):
        eta.update("export", label("export", cell), "queued")
    for cell in range(40):
        eta.update("export", label("export", cell), "running")
        clock.now += 1.0
        eta.update("export", label("export", cell), "done")
        assert eta.seconds_left() is None
    for cell in range(40):
        for stage in CELL_STAGES[1:]:
            eta.update(stage, label(stage, cell), "running")
            clock.now += 1.0
            eta.update(stage, label(stage, cell), "done")
        expected = None if cell < 2 else pytest.approx(7.0 * (39 - cell))
        assert eta.seconds_left() == expected


EXPECTED = ExpectedSeconds(
    seconds={
        (stage, work_label(stage, planned.request)): 2.0 for planned in load(SWEEP).cells for stage in CELL_STAGES
    },
    parallel=2,
)


def test_a_sweep_of_which_earlier_runs_are_stored_has_an_estimate_before_its_first_call() -> None:
    played = PlayedSweep(EXPECTED)
    # Before the first execution: an export, a quantization, a lowering and a bundle. After the last: a comparison.
    assert played.eta.summary() == "0 of 4 cells, about 35 s left"
    assert played.eta.seconds_left() == 4 * 2.0 + 4 * 3 * 2.0 + 2.0
    played.eta.update("export", work_label("export", played.requests[0]), "running")
    played.clock.now += 1.5
    assert played.eta.seconds_left() == 34.0 - 1.5


def test_what_is_expected_of_a_work_counts_more_than_the_mean_of_its_stage() -> None:
    played = PlayedSweep(EXPECTED)
    for stage in CELL_STAGES:
        played.do(stage, 0, 4.0)
    assert played.eta.seconds_left() == (1 + 3 * 6) * 2.0


def test_nothing_is_estimated_if_a_cell_is_unlike_those_of_earlier_runs() -> None:
    known = {work: seconds for work, seconds in EXPECTED.seconds.items() if "16a8w" not in work[1]}
    assert PlayedSweep(ExpectedSeconds(seconds=known)).eta.seconds_left() is None
