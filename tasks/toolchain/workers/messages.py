"""The messages that a worker process sends to its caller, pickled, through a pipe.

A fork of a zygote sends `Started`, its answer, and, sent by the zygote, `Ended`. Any other worker sends its answer
alone, and its handle makes an `Ended` when the process ends without one.
"""

from dataclasses import dataclass
from typing import Any

from tasks.errors import QnnsweepError


@dataclass(frozen=True, slots=True)
class Started:
    """The first message of a fork: its process id."""

    pid: int


@dataclass(frozen=True, slots=True)
class Returned:
    """The value that the function returned."""

    value: Any


@dataclass(frozen=True, slots=True)
class Refused:
    """An error about the request, the environment or evidence, which the caller raises as it is."""

    error: QnnsweepError


@dataclass(frozen=True, slots=True)
class Raised:
    """The name and the text of any other error: the error itself might not survive pickling."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of the process: its exit code, negative for a signal; None if the zygote died before it reported one."""

    exit_code: int | None


Answer = Returned | Refused | Raised
Message = Answer | Ended
