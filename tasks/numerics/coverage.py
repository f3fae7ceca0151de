"""How many operators were compared with a reference."""

from collections.abc import Iterable

from tasks.records.vocabulary import COMPARED, OPERATOR_STATUSES


def coverage(statuses: Iterable[str]) -> tuple[int, int]:
    """Return how many statuses have a gap, and how many statuses there are. Raises KeyError for an unknown status."""
    counted = list(statuses)
    for unknown in set(counted).difference(OPERATOR_STATUSES):
        raise KeyError(unknown)
    return sum(status in COMPARED for status in counted), len(counted)
