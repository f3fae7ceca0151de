"""The search for flips on an axis, and for the smallest set of changes, on answers that Hypothesis draws."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.results.bisection import MOST_COMPLETE, Answer, AxisSearch, Flip, smallest_changes

ANSWERS = st.lists(st.sampled_from(("bad", "good", "untestable")), min_size=0, max_size=60)


class Axis:
    """An axis whose answers are known. It counts how often it is measured."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.answers = answers
        self.asked: list[int] = []

    def measure(self, points: Sequence[int]) -> list[Answer]:
        self.asked += points
        return [self.answers[point] for point in points]


def all_flips(answers: Sequence[Answer]) -> list[Flip]:
    testable = [point for point, answer in enumerate(answers) if answer != "untestable"]
    pairs = itertools.pairwise(testable)
    return [Flip(before=a, after=b) for a, b in pairs if answers[a] != answers[b]]


@given(ANSWERS)
def test_every_reported_flip_is_real_and_no_point_is_measured_twice(between: list[Answer]) -> None:
    answers: list[Answer] = ["good", *between, "bad"]
    axis = Axis(answers)
    search = AxisSearch(len(answers), axis.measure)
    flips = search.run()
    assert flips
    assert set(map(repr, flips)) <= set(map(repr, all_flips(answers)))
    assert len(axis.asked) == len(set(axis.asked))
    for flip in flips:
        for start, step in ((flip.before, -1), (flip.after, 1)):
            beyond = range(start + step, -1 if step < 0 else len(answers), step)
            neighbour = next((point for point in beyond if answers[point] != "untestable"), None)
            assert neighbour is None or neighbour in search.answers


@given(st.lists(st.sampled_from(("bad", "good", "untestable")), max_size=MOST_COMPLETE - 2))
def test_a_short_axis_is_measured_completely_and_all_its_flips_are_reported(between: list[Answer]) -> None:
    answers: list[Answer] = ["good", *between, "bad"]
    search = AxisSearch(len(answers), Axis(answers).measure)
    assert search.run() == all_flips(answers)
    assert sorted(search.answers) == list(range(len(answers)))


@given(st.integers(MOST_COMPLETE + 1, 5000), st.data())
def test_a_monotone_long_axis_needs_a_logarithmic_number_of_points(count: int, data: st.DataObject) -> None:
    first_bad = data.draw(st.integers(1, count - 1))
    axis = Axis(["good" if point < first_bad else "bad" for point in range(count)])
    assert AxisSearch(count, axis.measure).run() == [Flip(before=first_bad - 1, after=first_bad)]
    assert len(axis.asked) <= math.ceil(math.log2(count - 1)) + 4


def test_a_neighbour_that_contradicts_the_flip_is_reported() -> None:
    def measure(points: Sequence[int]) -> list[Answer]:
        return ["good" if point < 12 or point == 13 else "bad" for point in points]

    flips = AxisSearch(28, measure).run()
    assert [(flip.before, flip.after) for flip in flips] == [(11, 12), (12, 13), (13, 14)]


class Changes:
    """Sets of changes whose answers are known. Every batch that is measured is recorded."""

    def __init__(self, answer: Callable[[frozenset[Hashable]], Answer]) -> None:
        self.answer = answer
        self.batches: list[list[frozenset[Hashable]]] = []

    def measure(self, sets: Sequence[Sequence[Hashable]]) -> list[Answer]:
        self.batches.append([*map(frozenset, sets)])
        return [self.answer(chosen) for chosen in self.batches[-1]]

    @property
    def asked(self) -> list[frozenset[Hashable]]:
        return [chosen for batch in self.batches for chosen in batch]


@given(st.integers(1, 12), st.data())
def test_the_smallest_changes_are_bad_and_none_can_be_left_out(count: int, data: st.DataObject) -> None:
    culprits = data.draw(st.lists(st.sets(st.integers(0, count - 1), min_size=1), min_size=1, max_size=3))
    changes = Changes(lambda chosen: "bad" if any(needed <= chosen for needed in culprits) else "good")
    smallest, _ = smallest_changes(range(count), changes.measure)
    assert changes.answer(frozenset(smallest)) == "bad"
    assert [change for change in smallest if changes.answer(frozenset(smallest) - {change}) == "bad"] == []


@given(st.integers(2, 12), st.data())
def test_one_necessary_set_of_changes_is_named_exactly_and_never_measured_twice(
    count: int, data: st.DataObject
) -> None:
    culprits = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    changes = Changes(lambda chosen: "bad" if culprits <= chosen else "good")
    smallest, answers = smallest_changes(range(count), changes.measure)
    assert set(smallest) == culprits
    assert len(changes.asked) == len(set(changes.asked))
    assert set(changes.asked) == set(answers) - {frozenset(range(count)), frozenset()}


def test_untestable_sets_of_changes_are_skipped() -> None:
    def answer(chosen: frozenset[Hashable]) -> Answer:
        if "pass" in chosen and "scheme" not in chosen:
            return "untestable"
        return "bad" if {"pass", "scheme"} <= chosen else "good"

    changes = Changes(answer)
    assert set(smallest_changes(["model", "pass", "soc", "scheme"], changes.measure)[0]) == {"pass", "scheme"}


def test_sets_of_changes_that_are_known_together_are_measured_together() -> None:
    changes = Changes(lambda chosen: "bad" if {1, 3} <= chosen else "good")
    smallest, _ = smallest_changes([0, 1, 2, 3], changes.measure)
    assert smallest == (1, 3)
    assert changes.batches == [
        [frozenset({0, 1}), frozenset({2, 3})],
        [frozenset({0}), frozenset({1}), frozenset({2}), frozenset({3})],
        [frozenset({1, 2, 3}), frozenset({0, 2, 3}), frozenset({0, 1, 3}), frozenset({0, 1, 2})],
        [frozenset({1, 3}), frozenset({1, 2})],
    ]
