"""A backend of another vendor through a whole sweep: all that belongs to it is in the folder `toy`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.copies import copy_folder
from tests.flows.sweep_outputs import read_table, result_of
from tests.program import Program

pytestmark = pytest.mark.toolchain

TOY = Path(__file__).parent / "toy"
DIGITS = ("model=digits_cnn", "model.evaluation.count=4", "model.calibration.count=8", "limits.parallel=2")
SWEEP = (*DIGITS, "scheme=fp32,8a8w", "backend=toy,portable", "soc=toy_small,toy_large,SM8650")


@pytest.fixture(scope="module")
def program(served_program: Program) -> Program:
    return served_program


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the toy: a folder of configuration with its code beside it."""
    return copy_folder(TOY, tmp_path_factory.mktemp("conf") / "toy")


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def run(program: Program, folder: Path, artifacts: Path) -> dict[str, Any]:
    ran = program.run("run", "--json", f"--config-dir={folder}", *SWEEP, f"artifacts={artifacts}")
    assert ran.returncode == 1, ran.stderr  # the programs for toy_small are refused
    return result_of(ran)


def test_each_cell_of_another_vendor_has_its_outcome(run: dict[str, Any], artifacts: Path) -> None:
    cells = {
        (cell["backend"], cell["scheme"], cell["soc"]): (cell["outcome"], cell["reason"] or cell["error_type"])
        for cell in read_table(artifacts, "cells", run["run_id"])
    }
    elsewhere = ("impossible", "the toy backend does not compile for SM8650")
    plain = ("impossible", "the portable backend accepts fp32 only")
    assert cells == {
        ("toy", "fp32", "toy_small"): ("failed", "ProgramDiffers"),
        ("toy", "fp32", "toy_large"): ("passed", None),
        ("toy", "fp32", "SM8650"): elsewhere,
        ("toy", "8a8w", "toy_small"): ("impossible", "the small toy has no integer units"),
        ("toy", "8a8w", "toy_large"): ("passed", None),
        ("toy", "8a8w", "SM8650"): elsewhere,
        **{("portable", "fp32", soc): ("passed", None) for soc in ("toy_small", "toy_large", "SM8650")},
        **{("portable", "8a8w", soc): plain for soc in ("toy_small", "toy_large", "SM8650")},
    }


def test_the_tables_have_its_audit_its_units_and_its_operators(run: dict[str, Any], artifacts: Path) -> None:
    def rows(name: str) -> list[dict[str, Any]]:
        of_toy = ("toy", "toy_large", "fp32")
        table = read_table(artifacts, name, run["run_id"])
        return [row for row in table if (row["backend"], row["soc"], row["scheme"]) == of_toy]

    checks = [(row["program"], row["asked"], row["status"]) for row in rows("audit") if row["check"] == "toy kernels"]
    assert checks == [("shipping", "at most 300", "met"), ("debug", "at most 300", "met")]
    assert {row["unit"] for row in rows("profile")} == {"toy_ticks"}
    (execution,) = [row for row in rows("profile") if row["event"] == "Method::execute"]
    (portable,) = [
        row
        for row in read_table(artifacts, "profile", run["run_id"])
        if (row["backend"], row["soc"], row["event"]) == ("portable", "toy_large", "Method::execute")
    ]
    assert portable["unit"] == "us"
    # The runtime counts nanoseconds: the toy's ticks are these, and portable's times are thousandths of them.
    assert [value for value in execution["raw"] if value != round(value)] == []
    assert [value for value in portable["raw"] if abs(value * 1000 - round(value * 1000)) > 1e-6] == []
    assert {"compared", "exact"} & {row["status"] for row in rows("operators")}


def test_its_code_is_part_of_the_cache_keys(
    run: dict[str, Any], program: Program, folder: Path, artifacts: Path
) -> None:
    asked = (f"--config-dir={folder}", *DIGITS, "scheme=fp32", "backend=toy", "soc=toy_large", f"artifacts={artifacts}")
    again = result_of(program.run("run", "--json", *asked))
    assert again["toolchain_calls"] == 0
    compiler = folder / "toy_backend" / "compiler.py"
    compiler.write_text(f"{compiler.read_text()}\n# Another version of the compiler.\n")
    changed = result_of(program.run("run", "--json", *asked))
    assert changed["toolchain_calls"] == 1, "the edge program is computed again, and the program is lowered"


def test_a_backend_that_cannot_be_imported_is_refused_in_one_line(program: Program) -> None:
    for kind, problem in (
        ("no_such_module:Toy", "backend.kind=no_such_module:Toy: cannot be imported: No module named 'no_such_module'"),
        ("xnpack", "backend.kind=xnpack: did you mean xnnpack? package.module:Class, or one of portable, qnn, xnnpack"),
    ):
        ran = program.run("plan", "model=digits_cnn", f"backend.kind={kind}")
        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr.splitlines()[-1].endswith(problem)
