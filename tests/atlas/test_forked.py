"""A step in a fork: its value, its error and its abort."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from qnnsweep.tasks.atlas.forked import Done, Failed, in_fork


def raises() -> None:
    raise ValueError("a\n\n  b\nc\nd\ne")


def test_the_value_of_a_step_comes_back_however_large_it_is() -> None:
    assert in_fork(lambda: {"pid": os.getpid()}) != Done({"pid": os.getpid()}), "the step ran in another process"
    assert in_fork(lambda: b"x" * 5_000_000) == Done(b"x" * 5_000_000)


@pytest.mark.parametrize(
    ("step", "failed"),
    [
        (raises, Failed(text="ValueError: a; b; c; d", error="ValueError")),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), Failed(text="SIGKILL", error=None)),
        (lambda: os._exit(3), Failed(text="exit code 3 without an answer", error=None)),
        (lambda: lambda: None, Failed(text="exit code 0 without an answer", error=None)),
    ],
)
def test_an_error_and_an_abort_are_told_apart(step: Callable[[], object], failed: Failed) -> None:
    assert in_fork(step) == failed
