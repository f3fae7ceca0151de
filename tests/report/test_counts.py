"""One regressed cell of two is one regressed cell of two, wherever a run is shown."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import pytest
from rich.console import Console

from qnnsweep.flows.cli.run import _output
from qnnsweep.flows.runs import flow_state, notifications, results
from qnnsweep.flows.runs.regressions import regressions_markdown
from qnnsweep.flows.runs.results import SweepResult
from qnnsweep.flows.runs.site import Site
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.report.counts import count
from qnnsweep.tasks.report.formats.benchmark_database import benchmark_database
from qnnsweep.tasks.report.formats.junit import junit
from qnnsweep.tasks.report.page import render
from qnnsweep.tasks.storage.store import Store
from tests.report.test_page import Page
from tests.sample_tables import LOGS, NIGHTS, RUN, cell, measured, sweep, trend

WORDS = "1 of 2 cells regressed"


@pytest.fixture(scope="module")
def tables() -> dict[str, list[Row]]:
    """A run of two cells, of which one has two series and one operator that regressed, and one that was bad before."""
    chance = random.Random(1)
    cells = [cell("net", scheme, "SM8650", **measured(chance, 30.0)) for scheme in ("8a8w", "16a8w")]
    contents = sweep(cells, count=3)
    new = {"verdict": "regressed", "first_bad_run": NIGHTS[-1], "changed": ["model"]}
    contents["trends"] = [
        trend(cells[0], "final_snr_db", 31.0, 0.0, unit="dB", **new),
        trend(cells[0], "device_snr_db", 61.0, 0.0, unit="dB", **new),
        trend(cells[0], "introduced_snr_db", 41.0, 0.0, unit="dB", operator="conv", **new),
        trend(cells[0], "pte_bytes", 7e4, 0.0, unit="bytes", verdict="still_bad", first_bad_run=NIGHTS[-3]),
        trend(cells[1], "final_snr_db", 31.0, 0.0, unit="dB"),
    ]
    return contents


@pytest.fixture(scope="module")
def result(tables: dict[str, list[Row]], tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    page = tmp_path_factory.mktemp("run") / "report.html"
    return SweepResult(run=RUN, cells=tables["cells"], trends=tables["trends"], page=page)


def test_the_terminal_and_json(result: SweepResult) -> None:
    written, output = io.StringIO(), _output(result, 0, None)
    for part in output.parts:
        Console(file=written, width=120).print(part)
    assert written.getvalue().count(WORDS) == 2  # below the cells, and above the series
    assert (output.contents["cells"], output.contents["regressions"]) == (2, 1)


def test_the_report_and_the_list_of_runs(tables: dict[str, list[Row]], tmp_path: Path) -> None:
    assert f'<a href="#regressions">{WORDS}</a>' in render(RUN, tables, LOGS)
    results.write_rows(RUN, tables, Store(tmp_path))
    index = Site(Store(tmp_path)).page("index.html") or ""
    assert f"<h1>{WORDS}</h1>" in index
    assert f'<td class="bad">✗ 2 passed, {WORDS}</td>' in index
    assert WORDS not in "".join(Page(render(RUN, tables | {"trends": []}, LOGS)).text)


def test_prefect_and_a_notification(result: SweepResult) -> None:
    state = flow_state._ended(result)
    assert (state.name, state.message) == (f"Completed: {WORDS}", f"2 passed, {WORDS}")
    assert regressions_markdown(result.counts).startswith(f"## {WORDS}\n")
    sent: list[tuple[str, str]] = []

    class Notifier:
        def notify(self, body: str, subject: str) -> None:
            sent.append((subject, body))

    notifications.send([Notifier()], result, Store(Path(result.page).parent))  # type: ignore[list-item]
    assert [subject for subject, _ in sent] == [f"qnnsweep: {WORDS} in {RUN.run_id}"]


def test_junit_and_the_benchmark_database(tables: dict[str, list[Row]]) -> None:
    assert junit(RUN, tables).count('<property name="regressed"') == 1
    records = json.loads(benchmark_database(RUN, tables))
    (regressed,) = [record for record in records if record["metric"]["name"] == "REGRESSED"]
    assert regressed["benchmark"]["dtype"] == "8a8w"
    assert regressed["metric"]["extra_info"]["series"][:2] == ["final_snr_db", "device_snr_db"]


def test_impossible_cells_are_in_no_share() -> None:
    outcomes = ("failed", "failed", "passed", "impossible", "out_of_tolerance")
    counts = count([{"outcome": outcome} for outcome in outcomes], [])
    assert counts.problems_in_words() == ["2 of 4 possible failed", "1 of 4 possible out of tolerance"]
    assert (counts.possible, counts.not_passed, counts.cells_in_words()) == (4, 3, "4 possible cells")
