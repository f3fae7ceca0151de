"""How many operators were compared with a reference."""

from collections.abc import Iterable

from tasks.records.vocabulary import COMPARED, OPERATOR_STATUSES


def coverage(statuses: Iterable[str]) -> tuple[int, int]:
    """Return how many statuses have a gap, and how many there are. Raises KeyError for a status that is not one."""
    compared = total = 0
    for status in statuses:
        if status not in OPERATOR_STATUSES:
            raise KeyError(status)
        compared += status in COMPARED
        total += 1
    return compared, total
