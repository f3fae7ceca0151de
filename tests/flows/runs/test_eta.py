"""How far a sweep is, and how long the rest will take."""

from __future__ import annotations

import pytest

from conf.load import load
from conf.names import CELL_STAGES
from flows.graph import subject
from flows.runs.eta import Pace


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Told:
    """A pace of digits_cnn in two schemes on two SoCs: one export, two quantizations, four of the rest."""

    def __init__(self) -> None:
        self.clock = Clock()
        cells = load(["model=digits_cnn", "scheme=8a8w,16a8w", "soc=SM8550,SM8650"]).cells
        self.pace = Pace(cells, self.clock)
        self.requests = [cell.request for cell in cells]

    def do(self, stage: str, cell: int, seconds: float = 0.0, state: str = "done") -> None:
        whose = subject(stage, self.requests[cell])
        if state != "reused":
            self.pace.tell(stage, whose, "running")
        self.clock.now += seconds
        self.pace.tell(stage, whose, state)


@pytest.fixture
def told() -> Told:
    return Told()


def test_nothing_is_promised_before_every_stage_has_been_seen(told: Told) -> None:
    for stage in CELL_STAGES[:-1]:
        told.do(stage, 0, 1.0)
    assert (told.pace.words(), told.pace.left_s()) == ("0 of 4 cells", None)


def test_what_is_left_takes_as_long_as_its_like_took(told: Told) -> None:
    for stage in CELL_STAGES:
        told.do(stage, 0, 2.0)
    # One quantization, and three each of lower, bundle, deploy, execute, collect and compare.
    assert told.pace.left_s() == pytest.approx(2.0 * (1 + 3 * 6))
    assert told.pace.words() == "1 of 4 cells, about 40 s left"


def test_what_went_on_at_the_same_time_is_expected_to_go_on_so(told: Told) -> None:
    for stage in CELL_STAGES[:2]:
        told.do(stage, 0, 2.0)
    told.do("quantize", 2, 2.0)
    for stage in CELL_STAGES[2:]:
        for cell in (0, 1):
            told.pace.tell(stage, subject(stage, told.requests[cell]), "running")
        told.clock.now += 2.0
        for cell in (0, 1):
            told.pace.tell(stage, subject(stage, told.requests[cell]), "done")
    passed, busy = 2.0 * 9, 2.0 * (3 + 2 * 6)
    assert told.pace.left_s() == pytest.approx(2.0 * 2 * 6 * passed / busy)


def test_reused_work_is_done_and_teaches_nothing(told: Told) -> None:
    for cell in range(4):
        for stage in CELL_STAGES:
            told.do(stage, cell, state="reused")
    assert (told.pace.ended, told.pace.words()) == (4, "4 of 4 cells")


def test_a_failure_ends_all_cells_that_stand_on_it_and_what_only_they_waited_for(told: Told) -> None:
    told.do("export", 0, 1.0)
    told.do("quantize", 0, 1.0)
    told.do("quantize", 2, 1.0, state="failed")
    assert told.pace.ended == 2
    for stage in CELL_STAGES[2:]:
        told.do(stage, 0, 1.0)
    assert told.pace.ended == 3
    assert told.pace.left_s() == pytest.approx(6.0 * 9 / 8)  # a failure is no example of how long things take


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
def test_the_time_left_is_told_no_finer_than_it_is_known(seconds: float, words: str, told: Told) -> None:
    for stage in CELL_STAGES:
        told.do(stage, 0, seconds / 19)
    assert told.pace.words() == f"1 of 4 cells, about {words} left"


def test_an_impossible_cell_is_not_waited_for() -> None:
    cells = load(["model=digits_cnn", "scheme=8a8w,fp16", "soc=SM8350"]).cells
    assert Pace(cells).words() == "0 of 1 cells"
