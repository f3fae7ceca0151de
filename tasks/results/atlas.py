"""The states of the operator cases of a cell, counted."""

from collections import Counter
from collections.abc import Iterable

from tasks.records import CaseOutcome
from tasks.records.vocabulary import CASE_STATES


def states_in_words(outcomes: Iterable[CaseOutcome]) -> list[str]:
    """Return the number of cases in each state that occurs, such as `3 wrong`, in the order of the states."""
    counts = Counter(outcome.state for outcome in outcomes)
    return [f"{counts[state]} {state.replace('_', ' ')}" for state in CASE_STATES if counts[state]]
