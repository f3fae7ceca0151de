"""Every value of a status, verdict, kind, rung or reference has a documented meaning."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from qnnsweep.tasks.records import vocabulary

MEANINGS = [
    ("OperatorStatus", "OPERATOR_STATUSES"),
    ("Verdict", "VERDICTS"),
    ("Cause", "CAUSES"),
    ("EventKind", "EVENT_KINDS"),
    ("Rung", "RUNGS"),
    ("Reference", "REFERENCES"),
    ("Outcome", "OUTCOMES"),
    ("CheckStatus", "CHECK_STATUSES"),
    ("ProbeStatus", "PROBE_STATUSES"),
    ("TrendVerdict", "TREND_VERDICTS"),
]


@pytest.mark.parametrize(("values", "meanings"), MEANINGS)
def test_every_value_of_a_literal_has_one_sentence(values: str, meanings: str) -> None:
    literal: Any = getattr(vocabulary, values)
    sentences: dict[str, str] = getattr(vocabulary, meanings)
    assert tuple(sentences) == get_args(literal)
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in sentences.values())
