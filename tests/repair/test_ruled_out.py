"""The changes that a search has measured, and the candidates that they rule out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from qnnsweep.conf.schemes import ChangeConfig, SchemeOverride
from qnnsweep.tasks.records.vocabulary import Cause
from qnnsweep.tasks.repair.candidates import Candidate, candidates
from tests.repair.sample_cells import CONVOLUTION, cell, operator, scheme

BEFORE = scheme("16a8w")
NAMES = ("first", "second", "third")
CHANGE = "16-bit float"


def offered(measured: Sequence[ChangeConfig] = ()) -> list[Candidate]:
    budget: dict[tuple[Cause, str], float] = {("weights", "first"): 0.4, ("weights", "second"): 0.3}
    budget |= {("weights", "third"): 0.1, ("device", "first"): 0.1}
    comparison, lowered = cell([operator(name, CONVOLUTION) for name in NAMES], budget)
    return candidates(comparison, lowered, BEFORE, None, (), measured)


def change(candidate: Candidate, *, has_failed: bool) -> ChangeConfig:
    return ChangeConfig(
        cause=candidate.cause,
        change=candidate.change,
        operators=[*candidate.operators],
        scheme=candidate.scheme,
        has_failed=has_failed,
    )


def in_float(found: Sequence[Candidate]) -> list[tuple[str, ...]]:
    """Return the operators of the candidates that compute in 16-bit float, for the error of the weights."""
    return [candidate.operators for candidate in found if (candidate.cause, candidate.change) == ("weights", CHANGE)]


def test_a_change_that_failed_at_some_operators_is_offered_at_others() -> None:
    all_of_them, first = (new for new in offered() if (new.cause, new.change) == ("weights", CHANGE))
    assert (set(all_of_them.operators), first.operators) == (set(NAMES), ("first",))
    assert in_float(offered([change(first, has_failed=True)])) == [("second",)]
    assert in_float(offered([change(all_of_them, has_failed=True)])) == []


def test_a_change_that_made_the_program_too_large_is_not_offered_with_the_same_scheme() -> None:
    all_of_them, first = (new for new in offered() if (new.cause, new.change) == ("weights", CHANGE))
    left = offered([change(all_of_them, has_failed=False)])
    assert all_of_them.scheme not in [new.scheme for new in left]
    assert ("first",) in in_float(left), first.description


def test_a_change_rules_out_no_change_of_another_kind() -> None:
    of_floats = [change(new, has_failed=True) for new in offered() if (new.cause, new.change) == ("weights", CHANGE)]
    kept = [new for new in offered() if (new.cause, new.change) != ("weights", CHANGE)]
    assert kept
    assert offered(of_floats) == kept


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_scheme_that_was_measured_for_another_reason_is_not_offered_again(has_failed: bool) -> None:
    (first, *_) = offered()
    other = ChangeConfig(cause="", change="", operators=[], scheme=first.scheme, has_failed=has_failed)
    assert first.scheme not in [new.scheme for new in offered([other])]
    unlike = scheme("16a8w", SchemeOverride(node="node_third", range=[0.0, 1.0]))
    assert offered([ChangeConfig(cause="", change="", operators=[], scheme=unlike, has_failed=has_failed)]) == offered()
