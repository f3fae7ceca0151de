from __future__ import annotations

from typing import get_args

import pytest

from tasks.numerics.coverage import COMPARED, STATUSES, Status, coverage


def test_every_status_has_one_sentence() -> None:
    assert tuple(STATUSES) == get_args(Status)
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in STATUSES.values())


def test_what_has_a_gap_is_covered_and_everything_counts() -> None:
    assert coverage(["compared", "exact", "masked", "not_dumped", "unused", "constant"]) == (3, 6)
    assert coverage(STATUSES) == (len(COMPARED), len(STATUSES)) == (3, 17)
    assert coverage([]) == (0, 0)


def test_a_status_nobody_documented_is_refused() -> None:
    with pytest.raises(KeyError, match="fine"):
        coverage(["compared", "fine"])
