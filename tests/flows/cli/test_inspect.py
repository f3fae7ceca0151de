"""`qnnsweep inspect` and `qnnsweep diff` of programs, as a user sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qnnsweep.flows.cli.main import command_line

LLAMA = Path(__file__).parents[2] / "data" / "llm" / "stories260k_hybrid_llama_qnn.pte"


def test_a_program_is_shown_in_tables_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["inspect", str(LLAMA)]) == 0
    shown = capsys.readouterr().out
    assert "soc_info.soc_model" in shown
    assert "24 more encoded tensors: see --json" in shown
    assert command_line(["inspect", str(LLAMA), "--json"]) == 0
    contents = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in contents["delegates"]] == ["kv_forward", "prefill_forward"]
    assert sum(row["scale"] is not None for row in contents["tensors"]) == 44


def test_equal_programs_have_no_difference(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["diff", str(LLAMA), str(LLAMA), "--json"]) == 0
    printed = {"schema": "qnnsweep/diff files/1", "a": str(LLAMA), "b": str(LLAMA), "changes": []}
    assert json.loads(capsys.readouterr().out) == printed


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = tmp_path / "cut.pte"
    cut.write_bytes(LLAMA.read_bytes()[:100_000])
    assert command_line(["inspect", str(cut)]) == 2
    assert command_line(["diff", str(LLAMA), str(tmp_path / "absent.pte")]) == 2
    problem = "not a readable program (.pte): 1331456 bytes at 0 of 81312 bytes of data; it was cut short"
    assert capsys.readouterr().err.splitlines() == [
        f"qnnsweep: PROGRAM={cut}: {problem}; export the program again, or copy it again",
        f"qnnsweep: RUN_B={tmp_path}/absent.pte: No such file or directory; name a .pte file",
    ]
