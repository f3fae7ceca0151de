from __future__ import annotations

import pytest

from qnnsweep.tasks.numerics.coverage import coverage
from qnnsweep.tasks.records.vocabulary import COMPARED, OPERATOR_STATUSES


def test_the_coverage_is_the_number_of_gaps_and_of_all_statuses() -> None:
    assert coverage(["compared", "exact", "masked", "not_dumped", "unused", "constant"]) == (3, 6)
    assert coverage(OPERATOR_STATUSES) == (len(COMPARED), len(OPERATOR_STATUSES)) == (3, 18)
    assert coverage([]) == (0, 0)


def test_an_unknown_status_is_refused() -> None:
    with pytest.raises(KeyError, match="fine"):
        coverage(["compared", "fine"])
