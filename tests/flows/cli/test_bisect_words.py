"""The words of `qnnsweep bisect` that are neither a cell nor an override of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnsweep.flows.bisection.request import FORM
from tests.program import Program


@pytest.mark.parametrize("option", ["", "--"])
def test_the_folder_of_the_artifacts_is_not_taken_for_a_cell(program: Program, tmp_path: Path, option: str) -> None:
    ran = program.run("bisect", "model=digits_cnn", f"{option}artifacts={tmp_path}")
    assert (ran.returncode, ran.stderr) == (2, f"qnnsweep: {FORM}\n")
