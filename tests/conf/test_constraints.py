"""Constraints are stated in annotations, and violations are found at any depth of a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest

from qnnsweep.conf.constraints import above_zero, at_least, choice, decibels, dimensions, share, violations


@dataclass
class Inner:
    word: Annotated[str, choice(("red", "green"), "colour")] = "red"
    free: int = -1


@dataclass
class Outer:
    part: Inner
    number: Annotated[int, at_least(1)] | None
    parts: list[Inner]
    shares: dict[str, Annotated[float, share]]
    shape: Annotated[list[int], dimensions("sizes")]
    gains: list[Annotated[float, decibels]]


def test_a_violation_names_its_own_key_at_any_depth() -> None:
    whole = Outer(Inner("blue"), 0, [Inner(), Inner("gren")], {"a\n": 2.0, "b": 1.0}, [1, 0], [1.0, float("nan")])
    assert [str(error) for error in violations(whole, "key")] == [
        "key.part.word=blue: no such colour; one of green, red",
        "key.number=0: 1 or more",
        "key.parts[1].word=gren: no such colour; did you mean green? one of green, red",
        "key.shares.a\\n=2.0: a share from 0 to 1",
        "key.shape=[1, 0]: sizes",
        "key.gains=nan: a number of dB",
    ]


def test_null_and_what_is_not_annotated_are_accepted() -> None:
    assert list(violations(Outer(Inner(free=-9), None, [], {}, [], []), "key")) == []


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_is_finite(number: float) -> None:
    assert at_least(0)(number)
    assert above_zero(number)
    assert decibels(number)
    assert share(number)
