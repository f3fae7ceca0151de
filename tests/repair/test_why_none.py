"""Why no change of a scheme is said: how many were tried, what became of them, and which came nearest."""

from __future__ import annotations

import pytest

from qnnsweep.tasks.repair.candidates import Candidate
from qnnsweep.tasks.repair.cures import Cure, why_none
from tests.repair.sample_cells import scheme


def cure(gain_db: float, where: str) -> Cure:
    candidate = Candidate(
        cause="clipping", change="a wider range", operators=(where,), where=where, scheme=scheme("use_8a8w"),
        estimated_db=9.0, cost=1.0,
    )  # fmt: skip
    return Cure(candidate=candidate, predicted_db=gain_db, lowest_db=gain_db, highest_db=gain_db)


@pytest.mark.parametrize(
    ("number", "refused", "found", "words"),
    [
        (3, [], [cure(-0.02, "a"), cure(0.61, "b")],
         "No cure known: of 3 changes tried, the best gains +0.6 dB (a wider range for b)."),
        (3, ["16-bit float for c", "16-bit float for d"], [cure(0.0, "a")],
         "No cure known: of 3 changes tried, 2 cannot be compiled (16-bit float for c), none helps."),
        (3, ["16-bit float for c"], [cure(0.3, "a"), cure(0.2, "b")],
         ("No cure known: of 3 changes tried, 1 cannot be compiled (16-bit float for c), the best gains +0.3 dB "
          "(a wider range for a).")),
        (2, ["16-bit float for c", "16-bit float for d"], [],
         "No cure known: of 2 changes tried, 2 cannot be compiled (16-bit float for c)."),
        (2, [], [], "No cure known: 2 changes were tried."),
        (1, [], [cure(0.3, "a")], "No cure known: a wider range for a gains +0.3 dB."),
        (1, [], [cure(-0.3, "a")], "No cure known: a wider range for a does not help."),
        (1, ["16-bit float for c"], [], "No cure known: 16-bit float for c cannot be compiled."),
        (1, [], [], "No cure known: 1 change was tried."),
    ],
)  # fmt: skip
def test_the_changes_that_were_tried_are_counted_and_the_nearest_is_named(
    number: int, refused: list[str], found: list[Cure], words: str
) -> None:
    assert why_none(number, refused, found) == words
