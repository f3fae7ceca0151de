"""The error classes QnnsweepError and RequestError, and functions that format parts of messages.

`qnnsweep.tasks.errors` has the other error classes.
"""

import copyreg
from collections.abc import Iterable
from typing import Any

_MOST_NEAREST = 3


class QnnsweepError(Exception):
    """The base class of all errors whose message is written for the user."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The method of BaseException would call the constructor without its keyword arguments.
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class RequestError(QnnsweepError):
    """The error for a wrong request. Its message is `key=value: problem`, `key: problem` or `problem`.

    Attributes: `problem` (what is wrong, and which values are accepted), `key` (the wrong key or option, or None),
    `value` (the printable value of `key`, or None if the message does not contain it).
    """

    def __init__(self, problem: str, *, key: str | None = None, value: str | None = None) -> None:
        subject = "" if key is None else f"{key}: " if value is None else f"{key}={value}: "
        super().__init__(f"{subject}{problem}")
        self.problem = problem
        self.key = key
        self.value = value


def printable(value: object) -> str:
    """Return `value` as one printable line of at most 120 characters."""
    text = "null" if value is None else str(value)
    line = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    return line if len(line) <= 120 else f"{line[:117]}..."


def one_of(choices: Iterable[str]) -> str:
    """Return a text such as `one of a, b, c`. If `choices` is empty, return `there are none`."""
    names = sorted(choices)
    return f"one of {', '.join(map(printable, names))}" if names else "there are none"


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return a text such as `did you mean x or y? `, with the choices nearest to `word`. It is empty if none is near.

    Near are the choices with the least number of edits, at most one edit for two letters, and otherwise the choices
    that begin with `word`. Upper and lower case are the same.
    """
    distances = {choice: _edits(word.lower(), choice.lower()) for choice in choices}
    least = min(distances.values(), default=0)
    if least <= len(word) / 2:
        nearest = sorted(choice for choice, distance in distances.items() if distance == least)
    else:
        nearest = sorted(choice for choice in distances if choice.lower().startswith(word.lower()))
    return f"did you mean {' or '.join(map(printable, nearest[:_MOST_NEAREST]))}? " if nearest else ""


def _edits(word: str, other: str) -> int:
    """Return the least number of edits from a word to another: insert, delete or replace a letter, swap neighbours."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(word, start=1):
        previous, row, older = row, [i], before
        for j, wanted in enumerate(other, start=1):
            row.append(min(previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (letter != wanted)))
            if i > 1 and j > 1 and (letter, word[i - 2]) == (other[j - 2], wanted):
                row[j] = min(row[j], older[j - 2] + 1)
        before = previous
    return row[-1]
