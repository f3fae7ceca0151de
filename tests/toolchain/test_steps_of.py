"""The loop of the runner: states that are written step by step, and tokens that the steps choose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from qnnsweep.tasks.records import PlannedStep, StateLink, StepPlan, TokenRule
from qnnsweep.tasks.toolchain.runner import changed, chosen, plan_of, steps_of

OLD = np.zeros((1, 4))
NEW = np.array([[1.0, 2.0, 3.0]])


@pytest.mark.parametrize(
    ("update", "at", "keep", "state"),
    [
        ("append", 0, None, [1, 2, 3, 0]),
        ("append", 1, 2, [0, 1, 2, 0]),
        ("append", 3, None, [0, 0, 0, 1]),
        ("append", 4, None, [0, 0, 0, 0]),
        ("ring", 3, None, [2, 3, 0, 1]),
        ("ring", 6, 1, [0, 0, 1, 0]),
        ("shift", 0, None, [0, 1, 2, 3]),
        ("shift", 0, 1, [0, 0, 0, 1]),
    ],
)
def test_an_output_is_written_into_a_state(update: str, at: int, keep: int | None, state: Sequence[float]) -> None:
    assert changed(OLD.copy(), NEW, update, 1, at, keep).tolist() == [state]


def test_an_output_can_be_the_next_state_itself() -> None:
    new = np.arange(4.0).reshape(2, 2)
    assert changed(OLD, new, "replace", -1, 0, None).tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize(("keep", "token"), [(None, 0), (1, 2), (2, 1)])
def test_the_token_is_that_of_the_last_row_that_counts(keep: int | None, token: int) -> None:
    assert chosen(np.array([[[0, 1, 5], [0, 7, 7], [9, 0, 1]]]), keep) == token


def test_a_plan_passes_states_and_tokens_from_step_to_step_and_starts_every_sequence_anew() -> None:
    first, later = (
        PlannedStep(method="forward", inputs=inputs, keep=None) for inputs in (("seven", None), (None, None))
    )
    plan = StepPlan(
        links=(StateLink(method="forward", output=1, to_method="forward", input=1, update="append", axis=0),),
        tokens=(TokenRule(method="forward", output=0, input=0),),
        sequences=((first, later, later), (first,)),
    )

    def read(_: str, index: int, fixed: str | None) -> Any:
        return np.zeros([1, 3][index]) if fixed is None else np.array([7])

    def call(_: tuple[int, int], __: PlannedStep, inputs: Sequence[Any]) -> list[Any]:
        token, cache = inputs
        scores = np.zeros((1, 9))
        scores[0, int(token[0]) - 1] = 1
        return [scores, token + cache[:1]]

    expected = [
        ((0, 0), [[7], [0, 0, 0]], 6),
        ((0, 1), [[6], [7, 0, 0]], 5),
        ((0, 2), [[5], [7, 13, 0]], 4),
        ((1, 0), [[7], [0, 0, 0]], 6),
    ]
    for same in (plan, plan_of(json.dumps(asdict(plan)))):
        ran = steps_of(same, read, call)
        assert [(place, [array.tolist() for array in inputs], token) for place, inputs, _, token in ran] == expected
