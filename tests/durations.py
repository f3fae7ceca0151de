"""How long each file of tests takes, recorded in durations.json: the longest start first, so that none is last alone.

    .venv/bin/pytest --record-durations        after a change that makes files longer or shorter

It replaces the durations of the files that it runs, with all that their tests and fixtures took.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

RECORDED = Path(__file__).with_suffix(".json")
ROOT = Path(__file__).parents[1]


def longest_first(items: list[pytest.Item], seconds: Mapping[str, float]) -> list[pytest.Item]:
    """Order tests by the duration of their file. A file without a recorded duration may be long, and is first."""
    return sorted(items, key=lambda item: -seconds.get(file_of(item.nodeid), math.inf))


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class Recorder:
    """Adds up the durations of the tests of each file, of all processes, and writes them at the end."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        seconds = {**recorded(), **{name: round(total, 1) for name, total in self._seconds.items()}}
        existing = {name: seconds[name] for name in sorted(seconds) if (ROOT / name).exists()}
        RECORDED.write_text(json.dumps(existing, indent=1) + "\n")


def recorded() -> dict[str, float]:
    return json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
