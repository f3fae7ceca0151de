"""The steps of a model with states that are not comparable, because the device read other tokens than eager PyTorch."""

from collections.abc import Mapping
from typing import Any

from qnnsweep.tasks.toolchain.runner import token_position

Place = tuple[int, int]


def diverged(plan: Any, tokens: Mapping[Place, tuple[int | None, int | None]]) -> set[Place]:
    """Return the steps that follow a step whose token differs, if a later step reads this token.

    `plan`: see `qnnsweep.tasks.toolchain.runner.plan_of`. `tokens`: per step, in the order of the plan, its token on
    the device and in eager PyTorch.
    """
    after: set[Place] = set()
    differs: set[int] = set()  # the sequences whose last token differs
    for (sequence, number), (device, eager) in tokens.items():
        if (sequence, number - 1) in after or (sequence in differs and _reads_token(plan, (sequence, number))):
            after.add((sequence, number))
        differs.discard(sequence)
        if device != eager:
            differs.add(sequence)
    return after


def _reads_token(plan: Any, place: Place) -> bool:
    step = plan.sequences[place[0]][place[1]]
    index = token_position(plan, step.method, "input")
    return index is not None and step.inputs[index] is None
