"""The messages that a worker process sends to its caller. They are pickled and sent through a pipe.

A fork of a zygote sends `Started` and its answer. When the fork has ended, the zygote sends `Ended`. Any other worker
sends only its answer. If its process ends without an answer, the caller's handle returns an `Ended` instead.
"""

from dataclasses import dataclass
from typing import Any

from tasks.errors import QnnsweepError


@dataclass(frozen=True, slots=True)
class Started:
    """The first message of a fork, which contains the fork's process id."""

    pid: int


@dataclass(frozen=True, slots=True)
class Returned:
    """The value that the function returned."""

    value: Any


@dataclass(frozen=True, slots=True)
class Refused:
    """An error about the request, the environment or evidence, which the caller raises unchanged."""

    error: QnnsweepError


@dataclass(frozen=True, slots=True)
class Raised:
    """The name and the text of any other error. The error itself is not sent: it might not survive pickling."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of the process. The exit code is negative for a signal; it is None if the zygote died first."""

    exit_code: int | None


Answer = Returned | Refused | Raised
Message = Answer | Ended
