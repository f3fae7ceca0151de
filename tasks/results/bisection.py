"""The search for the change that makes a good cell bad. A function that measures points or changes is its only input.

No answer is assumed to be monotone, and a point without an answer (*untestable*) is skipped.
"""

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

Answer = Literal["bad", "good", "untestable"]
MOST_COMPLETE = 8
"""An axis with at most so many points is measured completely."""

ChangeT = TypeVar("ChangeT", bound=Hashable)


@dataclass(frozen=True, kw_only=True, slots=True)
class Flip:
    """Two testable points of an axis with different answers. All points between them are untestable."""

    before: int
    after: int


class AxisSearch:
    """The search for all flips of an axis with `count` points. The first and the last point have different answers.

    `measure`: returns the answers of several points, which can be measured at the same time.
    """

    def __init__(self, count: int, measure: Callable[[Sequence[int]], Sequence[Answer]]) -> None:
        self._count = count
        self._measure = measure
        self.answers: dict[int, Answer] = {}
        """The answers of the measured points."""

    def run(self) -> list[Flip]:
        """Measure points until every flip between measured points is exact and has measured neighbours. Return them."""
        self._ask(range(self._count) if self._count <= MOST_COMPLETE else (0, self._count - 1))
        while True:
            flips = self._flips()
            halves = [point for flip in flips if (point := self._between(flip)) is not None]
            points = halves or sorted({point for flip in flips for point in self._neighbours(flip)})
            if not points:
                return flips
            self._ask(points)

    def _ask(self, points: Sequence[int]) -> None:
        self.answers.update(zip(points, self._measure(points), strict=True))

    def _flips(self) -> list[Flip]:
        testable = [point for point in sorted(self.answers) if self.answers[point] != "untestable"]
        pairs = itertools.pairwise(testable)
        return [Flip(before=a, after=b) for a, b in pairs if self.answers[a] != self.answers[b]]

    def _between(self, flip: Flip) -> int | None:
        """Return the point to measure next between the two points of a flip; None if all of them are measured."""
        unmeasured = [point for point in range(flip.before + 1, flip.after) if point not in self.answers]
        return min(unmeasured, key=lambda point: abs(2 * point - flip.before - flip.after), default=None)

    def _neighbours(self, flip: Flip) -> list[int]:
        """Return the points beside a flip that are not measured: the next that is testable on both sides."""
        points: list[int] = []
        for start, step in ((flip.before, -1), (flip.after, 1)):
            point = start + step
            while self.answers.get(point) == "untestable":
                point += step
            if 0 <= point < self._count and point not in self.answers:
                points.append(point)
        return points


def smallest_changes(
    changes: Sequence[ChangeT], measure: Callable[[Sequence[Sequence[ChangeT]]], Sequence[Answer]]
) -> tuple[tuple[ChangeT, ...], dict[frozenset[ChangeT], Answer]]:
    """Return changes that together make a cell bad, none of which can be left out, and all answers.

    This is delta debugging (ddmin, Zeller and Hildebrandt 2002). All changes together are bad, and no change is good.
    If a cell without one of the returned changes is untestable, this change may not be needed.
    `measure`: returns the answers for several sets of changes, which can be measured at the same time.
    """
    answers: dict[frozenset[ChangeT], Answer] = {frozenset(changes): "bad", frozenset(): "good"}

    def first_bad(sets: Sequence[list[ChangeT]]) -> list[ChangeT] | None:
        """Measure the sets that are not measured yet. Return the first that is bad."""
        unmeasured = {frozenset(chosen): chosen for chosen in sets if frozenset(chosen) not in answers}
        if unmeasured:
            answers.update(zip(unmeasured, measure([*unmeasured.values()]), strict=True))
        return next((chosen for chosen in sets if answers[frozenset(chosen)] == "bad"), None)

    current, parts = list(changes), 2
    while len(current) > 1:
        size = -(-len(current) // parts)
        subsets = [current[start : start + size] for start in range(0, len(current), size)]
        complements = [[change for change in current if change not in subset] for subset in subsets]
        if (smaller := first_bad(subsets)) is not None:
            current, parts = smaller, 2
        elif (smaller := first_bad(complements)) is not None:
            current, parts = smaller, max(parts - 1, 2)
        elif parts < len(current):
            parts = min(2 * parts, len(current))
        else:
            break
    return tuple(current), answers
