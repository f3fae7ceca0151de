"""The exit codes, the error classes QnnsweepError and RequestError, and functions that format parts of messages.

`qnnsweep.tasks.errors` has the other error classes.
"""

import copyreg
from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Any

PASSED, NOT_ALL_PASSED, REQUEST_WRONG, ENVIRONMENT_UNUSABLE, DEVICES_UNUSABLE = range(5)
INTERRUPTED = 130
"""The exit codes of the command line."""
_MOST_NEAREST = 3
_NEAR = 0.5
"""A choice is near if this share of its letters and of the word's is the same."""


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


def there_are(names: Iterable[str]) -> str:
    """Return a text such as `there are: a, b`, or `there is none`."""
    listed = ", ".join(names)
    return f"there are: {listed}" if listed else "there is none"


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return a text such as `did you mean x or y? `, with the choices nearest to `word`. It is empty if none is near.

    Upper and lower case are the same.
    """
    likeness = {choice: SequenceMatcher(None, word.lower(), choice.lower()).ratio() for choice in choices}
    most = max(likeness.values(), default=0.0)
    nearest = sorted(choice for choice, ratio in likeness.items() if ratio == most >= _NEAR)
    return f"did you mean {' or '.join(map(printable, nearest[:_MOST_NEAREST]))}? " if nearest else ""
