"""The states of the operator cases of a cell, counted, and what they say about the rules of impossible cells."""

from collections import Counter
from collections.abc import Iterable, Iterator

from qnnsweep.conf.impossible import compiler_limit
from qnnsweep.tasks.records import CaseOutcome
from qnnsweep.tasks.records.vocabulary import CASE_STATES
from qnnsweep.tasks.results.outcome import CellResult

_RIGHT = ("exact", "delegated")
"""The states of cases that the compiler accepts as a whole, and that are right."""
_SAYS_NOTHING = ("not_exported", "not_tried")


def states_in_words(outcomes: Iterable[CaseOutcome]) -> list[str]:
    """Return the number of cases in each state that occurs, such as `3 wrong`, in the order of the states."""
    counts = Counter(outcome.state for outcome in outcomes)
    return [f"{counts[state]} {state.replace('_', ' ')}" for state in CASE_STATES if counts[state]]


def rule_verdict(cell: CellResult) -> Iterator[str]:
    """Yield a sentence about the rule that calls the cell impossible, if there is one, and how many cases work.

    A rule may be about few operators, so that the other cases work.
    """
    rule = compiler_limit(cell.request)
    tried = [case for case in cell.cases or () if case.state not in _SAYS_NOTHING]
    if rule is None or not tried:
        return
    accepted, right = (sum(case.state in states for case in tried) for states in ((*_RIGHT, "wrong"), _RIGHT))
    cases = f"the compiler accepts {accepted} of {len(tried)} cases, and {right} of them are right"
    yield f"A rule calls this cell impossible ({rule}): {cases}."
