"""How many operators were compared with a reference."""

from collections.abc import Iterable

from qnnsweep.tasks.records.vocabulary import COMPARED, OPERATOR_STATUSES


def coverage(statuses: Iterable[str]) -> tuple[int, int]:
    """Count the statuses of compared operators, and all statuses. Raises KeyError for an unknown status."""
    counted = list(statuses)
    for unknown in set(counted).difference(OPERATOR_STATUSES):
        raise KeyError(unknown)
    return sum(status in COMPARED for status in counted), len(counted)
