"""The base of qnnsweep's errors, and the error for a wrong request. `tasks.errors` has the others."""

from __future__ import annotations

import copyreg
from typing import Any


class QnnsweepError(Exception):
    """Base of all errors with a message written for the person who reads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        # BaseException's own would call the constructor without its keyword arguments.
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class RequestError(QnnsweepError):
    """The configuration asks for something that cannot be done. The message is `key=value: problem`, where known.

    Attributes: `problem` (what is wrong, and what is accepted), `key` (the key or the option at fault, or None),
    `value` (the printable value of `key`, or None where the message leaves it out).
    """

    def __init__(self, problem: str, *, key: str | None = None, value: str | None = None) -> None:
        subject = "" if key is None else f"{key}: " if value is None else f"{key}={value}: "
        super().__init__(f"{subject}{problem}")
        self.problem = problem
        self.key = key
        self.value = value
