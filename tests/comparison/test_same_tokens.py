"""Two methods that write into one state after the same tokens."""

from __future__ import annotations

import numpy as np
import pytest

from qnnsweep.tasks.comparison.same_tokens import OtherMethod, other_methods
from qnnsweep.tasks.records import StateLink

LINKS = [
    StateLink(method=method, output=0, to_method="decode", input=1, update="append", axis=1)
    for method in ("prefill", "decode")
]
COLUMNS = np.array([[1.0, 2.0, 9.0]])


def one_by_one(*values: float) -> list:
    return [
        ((1, step), "decode", [token], [np.array([[value]])], None)
        for step, (token, value) in enumerate(zip((5, 6), values, strict=True))
    ]


def test_columns_after_the_same_tokens_are_compared_and_padding_is_left_out() -> None:
    prefill = ((0, 0), "prefill", [5, 6], [COLUMNS], 2)
    equal = OtherMethod(0.0, None)
    assert other_methods([prefill, *one_by_one(1.0, 2.0)], LINKS) == {(0, 0): equal, (1, 0): equal, (1, 1): equal}
    others = other_methods([prefill, *one_by_one(1.0, 2.2)], LINKS)
    assert [others[place].differing for place in ((0, 0), (1, 0), (1, 1))] == [0.5, 0.0, 1.0]
    assert others[1, 1].snr_db == pytest.approx(20.0)


def test_other_tokens_have_no_counterpart() -> None:
    assert other_methods([((0, 0), "prefill", [5, 7], [COLUMNS], 2)], LINKS) == {}
    others = other_methods([((0, 0), "prefill", [6, 5], [COLUMNS], 2), *one_by_one(1.0, 2.0)], LINKS)
    assert others == {}
