"""How often a run's progress is published to Prefect, and which percentages."""

from __future__ import annotations

from qnnsweep.conf.load import load
from qnnsweep.flows.forecasts.costs import stages_of, work_label
from qnnsweep.flows.runs.artifacts import CellsDone


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


CELLS = load(["model=digits_cnn", "scheme=8a8w,fp16", "soc=SM8350,SM8650"]).cells
"""Four cells, of which v68 cannot run one."""


def test_the_progress_counts_ended_failed_and_impossible_cells_and_is_published_once_per_second() -> None:
    clock, published = Clock(), list[float]()
    done = CellsDone(CELLS, published.append, clock)
    possible = [cell.request for cell in CELLS if cell.impossible is None]
    assert len(possible) == 3

    done.show()
    assert published == []
    clock.now += 1.0
    done.show()
    assert published == [25.0]
    for stage in stages_of(possible[0]):
        done.update(stage, work_label(stage, possible[0]), "done")
    done.update("lower", work_label("lower", possible[1]), "failed")
    done.update("compare", work_label("compare", possible[2]), "running")
    clock.now += 0.9
    done.show()
    assert published == [25.0]
    clock.now += 0.1
    done.show()
    done.show()
    assert published == [25.0, 75.0]
    clock.now += 5.0
    done.show()
    assert published == [25.0, 75.0]
    done.end()
    assert published == [25.0, 75.0, 100.0]


def test_the_failure_of_a_shared_stage_ends_all_of_its_cells() -> None:
    clock, published = Clock(), list[float]()
    done = CellsDone(CELLS, published.append, clock)
    done.update("export", "digits_cnn", "failed")
    clock.now += 1.0
    done.show()
    assert published == [100.0]
