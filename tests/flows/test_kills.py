"""A sweep that is killed with SIGKILL leaves no incomplete file, and the same command ends with the same tables.

benchmarks/kills.py does the same twenty times, at random moments.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.flows.kill_and_rerun import Tables, kill_and_rerun, run_undisturbed
from tests.program import Program

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]

COMMAND = ["run", "--json", "model=digits_cnn", "scheme=8a8w", "soc=SM8650", "model.calibration.count=32"]


@pytest.fixture(scope="module")
def expected(program: Program, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tables, float]:
    return run_undisturbed(program, COMMAND, tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.parametrize(
    ("victim", "share"),
    [
        ("program", 0.45),
        pytest.param("worker", 0.5, marks=pytest.mark.night),
        pytest.param("server", 0.65, marks=pytest.mark.night),
    ],
)
def test_after_a_kill_the_same_command_ends_with_the_same_tables(
    victim: str, share: float, expected: tuple[Tables, float], program: Program, tmp_path: Path
) -> None:
    tables, seconds = expected
    killed = None
    # With less other load than before, a sweep may end before its kill.
    for attempt, earlier in enumerate((1.0, 0.6, 0.3)):
        folder, after_s = tmp_path / str(attempt), earlier * share * seconds
        killed, rerun_tables = kill_and_rerun(program, COMMAND, folder, victim, after_s, random.Random(0))
        assert rerun_tables == tables, killed
        if killed is not None:
            break
    assert killed is not None
