"""How many operators were compared with a reference."""

from collections.abc import Iterable

from tasks.records.vocabulary import COMPARED, OPERATOR_STATUSES


def coverage(statuses: Iterable[str]) -> tuple[int, int]:
    """Return the number of statuses that have a gap, and the number of all. Raises KeyError for an unknown status."""
    counted = list(statuses)
    for unknown in set(counted).difference(OPERATOR_STATUSES):
        raise KeyError(unknown)
    return sum(status in COMPARED for status in counted), len(counted)
