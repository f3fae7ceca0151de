"""What Prefect is told of a run's progress, and how often."""

from __future__ import annotations

from conf.load import load
from conf.names import CELL_STAGES
from flows.graph import subject
from flows.runs.artifacts import CellsDone


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


CELLS = load(["model=digits_cnn", "scheme=8a8w,fp16", "soc=SM8350,SM8650"]).cells
"""Four, of which v68 cannot do one."""


def test_a_cell_has_ended_when_it_was_compared_or_failed_or_was_impossible_and_nothing_is_told_twice_a_second() -> None:
    clock, told = Clock(), list[float]()
    done = CellsDone(CELLS, told.append, clock)
    possible = [cell.request for cell in CELLS if cell.impossible is None]
    assert len(possible) == 3

    done.show()
    assert told == []
    clock.now += 1.0
    done.show()
    assert told == [25.0]
    for stage in CELL_STAGES:
        done.tell(stage, subject(stage, possible[0]), "done")
    done.tell("lower", subject("lower", possible[1]), "failed")
    done.tell("compare", subject("compare", possible[2]), "running")
    clock.now += 0.9
    done.show()
    assert told == [25.0]
    clock.now += 0.1
    done.show()
    done.show()
    assert told == [25.0, 75.0]
    clock.now += 5.0
    done.show()
    assert told == [25.0, 75.0]
    done.end()
    assert told == [25.0, 75.0, 100.0]


def test_a_stage_that_several_cells_share_fails_all_of_them() -> None:
    clock, told = Clock(), list[float]()
    done = CellsDone(CELLS, told.append, clock)
    done.tell("export", "digits_cnn", "failed")
    clock.now += 1.0
    done.show()
    assert told == [100.0]
