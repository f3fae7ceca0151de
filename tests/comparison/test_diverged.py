"""The steps of a sequence that are not comparable, because the device read other tokens than eager PyTorch."""

from __future__ import annotations

import json
from dataclasses import asdict

from qnnsweep.tasks.comparison.diverged import diverged
from qnnsweep.tasks.records import PlannedStep, StepPlan, TokenRule
from qnnsweep.tasks.toolchain.runner import plan_of

READS_ITS_OWN = PlannedStep(method="decode", inputs=(None,), keep=1)
READS_A_GIVEN_ONE = PlannedStep(method="decode", inputs=("0/1/token",), keep=1)
RULE = TokenRule(method="decode", output=0, input=0)


def plan(*sequences: tuple[PlannedStep, ...]) -> StepPlan:
    return StepPlan(links=(), tokens=(RULE,), sequences=sequences)


def test_the_steps_after_a_token_that_differs_are_left_out_of_their_sequence_alone() -> None:
    steps = plan((READS_ITS_OWN,) * 4, (READS_ITS_OWN,) * 2)
    tokens = {(0, 0): (5, 5), (0, 1): (6, 7), (0, 2): (8, 8), (0, 3): (8, 8), (1, 0): (1, 1), (1, 1): (2, 2)}
    assert diverged(steps, tokens) == {(0, 2), (0, 3)}
    # The runner's plan and that of the records are the same.
    assert diverged(plan_of(json.dumps(asdict(steps))), tokens) == {(0, 2), (0, 3)}


def test_a_token_that_differs_has_no_effect_if_the_next_step_reads_a_given_one() -> None:
    steps = plan((READS_ITS_OWN, READS_A_GIVEN_ONE, READS_ITS_OWN))
    assert diverged(steps, {(0, 0): (5, 6), (0, 1): (7, 7), (0, 2): (8, 8)}) == set()
    assert diverged(steps, {(0, 0): (5, 6), (0, 1): (7, 9), (0, 2): (8, 8)}) == {(0, 2)}


def test_steps_without_tokens_are_all_comparable() -> None:
    steps = StepPlan(links=(), tokens=(), sequences=((READS_ITS_OWN,) * 2,))
    assert diverged(steps, {(0, 0): (None, None), (0, 1): (None, None)}) == set()
