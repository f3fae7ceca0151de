"""What to examine first of a cell, from the rows of its tables."""

from __future__ import annotations

from typing import Any

import pytest

from qnnsweep.flows.runs.culprit import culprit

NAMES = {"model": "m", "scheme": "8a8w", "soc": "SM8650", "device": "local", "backend": "qnn", "toolchain": "default"}
CELL = NAMES | {
    "worst_operator": "linear",
    "worst_operator_cause": "clipping",
    "worst_operator_verdict": "grid",
    "worst_operator_effect_snr_db": 20.0,
    "worst_final_output": "out",
    "worst_sample": 3,
}
OPERATORS = [
    NAMES | {"operator": "linear", "sample": 3, "target": "aten.linear.default", "module_path": "head"}
    | {"stack_trace": ""}
]  # fmt: skip


def part(
    operator: str, index: int | None, share: float, without_db: float, cause: str = "resolution"
) -> dict[str, Any]:
    effects = {"share": share, "alone_snr_db": 30.0, "without_snr_db": without_db}
    return (
        NAMES | {"operator": operator, "operator_index": index, "cause": cause, "output": "out", "sample": 3} | effects
    )


INPUT, LINEAR, SMALL = part("x", None, 0.6, 35.0), part("linear", 4, 0.3, 29.0, "clipping"), part("y", None, 0.01, 10.1)


@pytest.mark.parametrize(
    ("budget", "changes", "words"),
    [
        ([INPUT, LINEAR], {}, "resolution in the input x"),
        ([LINEAR, INPUT], {}, "clipping in linear of head"),
        ([SMALL, LINEAR, INPUT], {}, "clipping in linear of head"),
        ([SMALL, INPUT, LINEAR], {}, "resolution in the input x"),
        ([], {}, "clipping in linear of head"),
        ([INPUT | {"sample": 2}, LINEAR], {}, "clipping in linear of head"),
        ([INPUT | {"soc": "SM8550"}, LINEAR], {}, "clipping in linear of head"),
        # An operator that introduces NaNs or wrong integers comes before the budget, which does not know its effect.
        (
            [INPUT, LINEAR],
            {"worst_operator_cause": None, "worst_operator_effect_snr_db": None},
            "unknown cause in linear of head",
        ),
    ],
)
def test_the_culprit_is_the_first_part_of_the_budget_that_matters(
    budget: list[dict[str, Any]], changes: dict[str, Any], words: str
) -> None:
    assert str(culprit(CELL | changes, OPERATORS, budget)) == words


def test_a_cell_without_a_worst_operator_has_no_culprit() -> None:
    assert culprit(CELL | {"worst_operator": None}, OPERATORS, [INPUT]) is None
