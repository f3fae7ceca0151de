from __future__ import annotations

import pytest

from tasks.numerics.coverage import coverage
from tasks.records.vocabulary import COMPARED, OPERATOR_STATUSES


def test_what_has_a_gap_is_covered_and_everything_counts() -> None:
    assert coverage(["compared", "exact", "masked", "not_dumped", "unused", "constant"]) == (3, 6)
    assert coverage(OPERATOR_STATUSES) == (len(COMPARED), len(OPERATOR_STATUSES)) == (3, 17)
    assert coverage([]) == (0, 0)


def test_a_status_nobody_documented_is_refused() -> None:
    with pytest.raises(KeyError, match="fine"):
        coverage(["compared", "fine"])
