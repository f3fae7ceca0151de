"""Constraints are stated in annotations, and violations are found at any depth of a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

from qnnsweep.conf.constraints import choice, dimensions, violations


@dataclass
class Inner:
    word: Annotated[str, choice(("red", "green"), "colour")] = "red"
    free: int = -1


@dataclass
class Outer:
    part: Inner
    number: Annotated[int, Interval(ge=1)] | None
    parts: list[Inner]
    shares: dict[str, Annotated[float, Interval(le=1)]]
    shape: Annotated[list[int], dimensions("sizes")]
    gains: list[Annotated[float, Interval(gt=0)]]


def test_a_violation_names_its_own_key_at_any_depth() -> None:
    gains = [1.0, 0.0, float("nan"), float("inf"), float("-inf")]
    whole = Outer(Inner("blue"), 0, [Inner(), Inner("gren")], {"a\n": 2.0, "b": 1.0}, [1, 0], gains)
    assert [str(error) for error in violations(whole, "key")] == [
        "key.part.word=blue: no such colour; one of green, red",
        "key.number=0: 1 or more",
        "key.parts[1].word=gren: no such colour; did you mean green? one of green, red",
        "key.shares.a\\n=2.0: at most 1",
        "key.shape=[1, 0]: sizes",
        "key.gains=0.0: above 0",
        "key.gains=nan: a finite number",
        "key.gains=inf: a finite number",
        "key.gains=-inf: a finite number",
    ]


def test_null_and_what_is_not_annotated_are_accepted() -> None:
    assert list(violations(Outer(Inner(free=-9), None, [], {}, [], []), "key")) == []
