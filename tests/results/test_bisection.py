"""The search for flips on an axis, and for the smallest set of changes, on answers that Hypothesis draws."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tasks.results.bisection import MOST_COMPLETE, Answer, AxisSearch, Flip, smallest_changes

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


@given(st.integers(1, 12), st.data())
def test_the_smallest_changes_are_bad_and_none_can_be_left_out(count: int, data: st.DataObject) -> None:
    culprits = data.draw(st.lists(st.sets(st.integers(0, count - 1), min_size=1), min_size=1, max_size=3))
    asked: list[frozenset[int]] = []

    def measure(chosen: Sequence[int]) -> Answer:
        asked.append(frozenset(chosen))
        return "bad" if any(needed <= set(chosen) for needed in culprits) else "good"

    smallest, _ = smallest_changes(range(count), measure)
    assert measure(smallest) == "bad"
    assert [change for change in smallest if measure([other for other in smallest if other != change]) == "bad"] == []


@given(st.integers(2, 12), st.data())
def test_one_necessary_set_of_changes_is_named_exactly_and_never_measured_twice(
    count: int, data: st.DataObject
) -> None:
    culprits = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    asked: list[frozenset[int]] = []

    def measure(chosen: Sequence[int]) -> Answer:
        asked.append(frozenset(chosen))
        return "bad" if culprits <= set(chosen) else "good"

    smallest, answers = smallest_changes(range(count), measure)
    assert set(smallest) == culprits
    assert len(asked) == len(set(asked))
    assert set(asked) == set(answers) - {frozenset(range(count)), frozenset()}


def test_untestable_sets_of_changes_are_skipped() -> None:
    def measure(chosen: Sequence[str]) -> Answer:
        if "pass" in chosen and "scheme" not in chosen:
            return "untestable"
        return "bad" if {"pass", "scheme"} <= set(chosen) else "good"

    assert set(smallest_changes(["model", "pass", "soc", "scheme"], measure)[0]) == {"pass", "scheme"}
