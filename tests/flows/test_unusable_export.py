"""An export that finds the machine unusable is tried once more before it ends the sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.program import Program

pytestmark = pytest.mark.toolchain

MODULE = """
from pathlib import Path
from qnnsweep.tasks.errors import EnvironmentUnusable, RequestError

def create(attempts, unusable):
    with Path(attempts).open("a") as file:
        file.write("attempt\\n")
    if len(Path(attempts).read_text().splitlines()) <= unusable:
        raise EnvironmentUnusable("the disk is full")
    raise RequestError("the disk is no longer full")
"""


@pytest.mark.parametrize(
    ("unusable", "exit_code", "message"),
    [(1, 2, "qnnsweep: the disk is no longer full"), (2, 3, "qnnsweep: the disk is full")],
)
def test_only_a_machine_that_is_unusable_twice_ends_the_sweep(
    unusable: int, exit_code: int, message: str, served_program: Program, tmp_path: Path
) -> None:
    folder, attempts = tmp_path / "conf", tmp_path / "attempts"
    (folder / "model").mkdir(parents=True)
    (folder / "full_disk.py").write_text(MODULE)
    (folder / "model" / "full_disk.yaml").write_text(
        "defaults: [digits_cnn]\nname: full_disk\nfactory: full_disk:create\n"
        f"arguments: {{attempts: {attempts}, unusable: {unusable}}}\n"
    )
    ran = served_program.run(
        "run", f"--config-dir={folder}", "model=full_disk", "scheme=8a8w,16a8w", "soc=SM8650", f"artifacts={tmp_path}/a"
    )
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (exit_code, message)
    assert attempts.read_text().splitlines() == ["attempt"] * 2
