"""Waiting for a condition, and assertions about processes that have to end. One that ends during a check has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import psutil

T = TypeVar("T")


def eventually(condition: Callable[[], T], within_s: float) -> T:
    """Return the result of a condition as soon as it is true, or its last result within this time."""
    latest = time.monotonic() + within_s
    while not (result := condition()) and time.monotonic() <= latest:
        time.sleep(0.05)
    return result


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def command_of(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return "gone already"


def assert_gone(processes: Sequence[psutil.Process], within_s: float) -> None:
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    assert [command_of(process.pid) for process in alive if not has_ended(process.pid)] == []


def assert_dead(pid: int, within_s: float) -> None:
    """Assert that the process with this id ends within the time."""
    until = time.monotonic() + within_s
    while not has_ended(pid):
        assert time.monotonic() < until, f"{command_of(pid)} still runs"
        time.sleep(0.05)
