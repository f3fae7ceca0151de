"""The regressions of a run, in the terminal and in Prefect."""

from __future__ import annotations

import pytest
from rich.console import Console

from qnnsweep.flows.runs.regressions import regressions_markdown, regressions_table
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.report.counts import count
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from tests.flows.runs.synthetic_history import run_of
from tests.flows.runs.test_history import write_history

CELLS: list[Row] = [{"outcome": "passed"}]


@pytest.fixture(scope="module")
def trends(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Row]]:
    """The table `trends` of each night: after the third night another SDK and a smaller SNR, then a larger program."""
    root = tmp_path_factory.mktemp("artifacts")
    worse = {"final_snr_db": 25.0, "qnn": "v2.50.1"}
    write_history(root, [*[{"final_snr_db": 30.0}] * 3, worse, worse | {"pte_bytes": 2_000_000}])
    return {night: tables.rows(Store(root), "trends", run_of(night)) for night in range(5)}


def test_a_run_without_regressions_has_no_table(trends: dict[int, list[Row]]) -> None:
    counts = count(CELLS, trends[2])
    assert (counts.regressed, regressions_table(counts), regressions_markdown(counts)) == ({}, None, "")


def test_the_terminal_shows_each_regression_with_its_first_run_and_the_changes(trends: dict[int, list[Row]]) -> None:
    console = Console(width=160, no_color=True)
    with console.capture() as output:
        console.print(regressions_table(count(CELLS, trends[4])))
    lines = [" ".join(line.split()) for line in output.get().splitlines() if line.strip() and "─" not in line]
    assert lines == [
        "1 of 1 cell regressed",
        "cell worse is was since changed then",
        f"toy · 8a8w · SM8650 · phone pte_bytes 2,000,000 bytes 70,000 bytes {run_of(4)} nothing known",
        f"toy · 8a8w · SM8650 · phone final_snr_db 25 dB 30 dB {run_of(3)} qnn v2.49.40 -> v2.50.1",
    ]


def test_the_regression_of_an_operator_and_of_a_step_begins_with_its_name(trends: dict[int, list[Row]]) -> None:
    row = next(row for row in trends[4] if row["verdict"] == "regressed")
    parts = [{"operator": "conv", "series": "snr_db"}, {"step": 'step 1 of "a"', "series": "same_token"}]
    lines = regressions_markdown(count(CELLS, [row | part for part in parts])).splitlines()
    assert [line.split(" | ")[1] for line in lines[-2:]] == [r"conv snr\_db", r'step 1 of "a" same\_token']


def test_the_markdown_has_the_same_rows(trends: dict[int, list[Row]]) -> None:
    lines = regressions_markdown(count(CELLS, trends[4])).splitlines()
    assert lines[0] == "## 1 of 1 cell regressed"
    assert lines[-1] == (
        rf"| toy · 8a8w · SM8650 · phone | final\_snr\_db | 25 dB | 30 dB | {run_of(3)} | qnn v2.49.40 -\> v2.50.1 |"
    )
