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
         "3 changes of the scheme were tried: none gains 1 dB (at most +0.6 dB: a wider range for b)"),
        (3, ["16-bit float for c", "16-bit float for d"], [cure(0.0, "a")],
         ("3 changes of the scheme were tried: 2 cannot be compiled (first: 16-bit float for c) and none gains 1 dB "
         "(at most +0.0 dB: a wider range for a)")),
        (2, ["16-bit float for c", "16-bit float for d"], [],
         "2 changes of the scheme were tried: 2 cannot be compiled (first: 16-bit float for c)"),
        (2, [], [], "2 changes of the scheme were tried"),
        (1, [], [cure(0.3, "a")], "the only change of the scheme that was tried, a wider range for a, gains +0.3 dB"),
        (1, ["16-bit float for c"], [],
         "the only change of the scheme that was tried, 16-bit float for c, cannot be compiled"),
    ],
)  # fmt: skip
def test_the_changes_that_were_tried_are_counted_and_the_nearest_is_named(
    number: int, refused: list[str], found: list[Cure], words: str
) -> None:
    assert why_none(number, refused, found, 1.0) == words
