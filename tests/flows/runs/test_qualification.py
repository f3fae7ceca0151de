"""The verdict page of a qualification, from the sample rows of one run with two toolchains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.schema import Request
from qnnsweep.conf.toolchains import ToolchainConfig
from qnnsweep.flows.runs.qualification import Qualification, qualify
from qnnsweep.flows.runs.qualification_page import markdown_page, verdict, write_page
from qnnsweep.tasks.errors import DeviceError
from qnnsweep.tasks.records import Quantization
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.results.rows import rows
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from tests.sample_records import COMPARISON, LOWERED, TOOLCHAIN, passed_cell, two_methods_cell, up_to_lower

RUN = "20261124T220000Z-aaaa"
NEW = replace(TOOLCHAIN, qnn="v2.51.0.260929181845", bridge="device structure")


@pytest.fixture(scope="module")
def requests() -> tuple[Request, Request]:
    """The same cell with the toolchains `default` and `new`."""
    request = load(["tolerance=none"]).cells[0].request
    return request, replace(request, toolchain=ToolchainConfig(name="new", folder="/prepared/new"))


def qualification(
    root: Path, cells: Sequence[CellResult], excluded: Mapping[tuple[str, ...], str] | None = None
) -> Qualification:
    """Write a run of the cells, and compare its toolchains. Cells of `new` have another QNN release."""
    store = Store(root)
    cells = [replace(cell, toolchain=NEW if cell.request.toolchain.name == "new" else TOOLCHAIN) for cell in cells]
    for table, table_rows in rows(RUN, cells, TOOLCHAIN).items():
        tables.write(store, RUN, table, table_rows)
    return qualify(store, RUN, "default", "new", excluded)


def test_equal_cells_give_no_finding(requests: tuple[Request, Request], tmp_path: Path) -> None:
    compared = qualification(tmp_path, [passed_cell(request) for request in requests])
    assert [change for cell in compared.difference.cells for change in cell.changes] == []
    assert (compared.passed, compared.equal_outputs) == (True, 1)
    assert verdict(compared) == "nothing got worse, 0 values got better"
    assert "## " not in markdown_page(compared)


def test_outputs_that_differ_in_the_second_method_only_are_not_equal(
    requests: tuple[Request, Request], tmp_path: Path
) -> None:
    cells = [two_methods_cell(request, decode=letter) for request, letter in zip(requests, "67", strict=True)]
    assert qualification(tmp_path / "different", cells).equal_outputs == 0
    assert qualification(tmp_path / "equal", [two_methods_cell(request) for request in requests]).equal_outputs == 1


def test_the_page_lists_what_got_worse_better_and_different(requests: tuple[Request, Request], tmp_path: Path) -> None:
    finer = Quantization(scale=(0.25,), zero_point=(7,), axis=None, quant_min=0, quant_max=255, dtype="uint8")
    operators = [
        replace(row, operator=replace(row.operator, quantization=finer if row.operator.name == "conv" else None))
        for row in COMPARISON.operators
    ]
    operators[0] = replace(operators[0], gap=replace(operators[0].gap, snr_db=35.0))
    lowered = replace(LOWERED, program=replace(LOWERED.program, size=900))
    other = passed_cell(requests[1], comparison=replace(COMPARISON, operators=tuple(operators)), lowered=lowered)
    compared = qualification(tmp_path, [passed_cell(requests[0]), other])
    page = write_page(compared, Store(tmp_path))
    text = (tmp_path / "runs" / RUN / "qualify-default-new.md").read_text()
    assert page.endswith(f"runs/{RUN}/qualify-default-new.md")
    assert text.splitlines()[0] == "# new instead of default: 1 value got worse, 1 got better"
    assert "| qnn | v2.49.40.260701 | v2.51.0.260929181845 |" in text
    assert "| bridge | – | device structure |" in text
    cell = r"| digits\_cnn · 8a8w · SM8650 · qnn · local |"
    assert [line for line in text.splitlines() if line.startswith(("##", "| digits"))] == [
        "## Worse (1)",
        rf"{cell} conv: snr\_db | 40 dB | 35 dB | 3 dB |",
        "## Better (1)",
        rf"{cell} pte\_bytes | 1,000 bytes | 900 bytes | 10 bytes |",
        "## Changed (1)",
        f"{cell} conv: grid | scale 0.5, zero point 3 | scale 0.25, zero point 7 | – |",
    ]


def test_a_cell_that_no_longer_compiles_is_worse_and_the_way_back_is_better(
    requests: tuple[Request, Request], tmp_path: Path
) -> None:
    broken = RuntimeError("Failed to generate Qnn context binary")
    compared = qualification(tmp_path / "a", [passed_cell(requests[0]), up_to_lower(requests[1], "lower", broken)])
    (line,) = [line for line in markdown_page(compared).splitlines() if " outcome |" in line]
    assert "| passed | failed: RuntimeError: Failed to generate Qnn context binary |" in line
    assert not compared.passed
    back = qualification(tmp_path / "b", [up_to_lower(requests[0], "lower", broken), passed_cell(requests[1])])
    assert back.passed
    assert "## Better" in markdown_page(back)


def test_a_cell_that_could_not_be_measured_decides_nothing(requests: tuple[Request, Request], tmp_path: Path) -> None:
    lost = up_to_lower(requests[1], "deploy", DeviceError("unplugged"))
    compared = qualification(tmp_path, [passed_cell(requests[0]), lost])
    assert (compared.passed, compared.unusable) == (False, 1)
    assert verdict(compared) == "not decided: 1 cell could not be measured"


def test_a_cell_that_a_rule_calls_impossible_is_listed_if_it_passes_and_judged_in_no_case(
    requests: tuple[Request, Request], tmp_path: Path
) -> None:
    excluded = {request.names[:-1]: "v75 is too old" for request in requests}
    broken = RuntimeError("incorrect Value 75, expected >= 99")
    refused = [up_to_lower(request, "lower", broken) for request in requests]
    passed = [passed_cell(request) for request in requests]
    pages: list[list[str]] = []
    for number, pair in enumerate([(refused[0], passed[1]), passed, (passed[0], refused[1]), refused]):
        compared = qualification(tmp_path / str(number), pair, excluded)
        assert (compared.passed, compared.difference.cells, compared.before.cells) == (True, [], 0)
        lines = markdown_page(compared).splitlines()
        pages.append([line for line in lines if line.startswith(("##", "| digits", "1 cell"))])
    cell = r"| digits\_cnn · 8a8w · SM8650 · qnn · local | v75 is too old |"
    still_failing = ["1 cell that a rule calls impossible did not pass with new."]
    assert pages == [
        [
            "## Called impossible, but possible now (1)",
            rf"{cell} failed: RuntimeError: incorrect Value 75, expected \>= 99 | passed |",
        ],
        ["## Called impossible, but passes with both (1)", f"{cell} passed | passed |"],
        still_failing,
        still_failing,
    ]
