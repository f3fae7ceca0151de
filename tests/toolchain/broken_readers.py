"""Readers of mutated files that fail at one mutation in four. Imported in workers, hence beside the tests."""

from __future__ import annotations

import os
from collections.abc import Callable

from mutated import Material, Outcome, Reader


def crashing(_material: Material) -> dict[str, Reader]:
    return _failing(os.abort)


def misreading(_material: Material) -> dict[str, Reader]:
    return _failing(lambda: "different")


def confused(_material: Material) -> dict[str, Reader]:
    return _failing(lambda: [].pop())


def hungry(_material: Material) -> dict[str, Reader]:
    return _failing(lambda: "equal" if b"x" * 600_000_000 else "different")


def _failing(fail: Callable[[], Outcome]) -> dict[str, Reader]:
    return {"file": Reader(bytes(1000), lambda data: fail() if sum(data) % 4 == 1 else "equal")}
