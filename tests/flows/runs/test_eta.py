"""The estimate of the time that a sweep will still take."""

from __future__ import annotations

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.names import CELL_STAGES
from qnnsweep.flows.graph import work_label
from qnnsweep.flows.runs.eta import EtaEstimate


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class PlayedSweep:
    """An estimate for digits_cnn in two schemes on two SoCs: one export, two quantizations, four of the rest."""

    def __init__(self) -> None:
        self.clock = Clock()
        cells = load(["model=digits_cnn", "scheme=8a8w,16a8w", "soc=SM8550,SM8650"]).cells
        self.eta = EtaEstimate(cells, self.clock)
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
    overrides = ["model=digits_cnn", "soc=SM8650", "scheme=8a8w", f"model.name={','.join(f'm{n}' for n in range(40))}"]
    cells = load(overrides).cells
    eta = EtaEstimate(cells, clock)

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
