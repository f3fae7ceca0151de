"""Equal SoCs of one architecture share a column of the matrix, and a difference is never hidden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from qnnsweep.tasks.report.folding import Column, folds
from qnnsweep.tasks.report.page import render
from tests.sample_tables import NIGHTS, RUN, cell, sweep, table, trend

SOCS = {"SM8550": 73, "SA8255": 73, "QCS9100": 73, "SM8650": 75}
MEASURED = {"final_difference": "finite", "final_snr_db": 31.5, "pte_bytes": 71_000, "timed_on": "simulator"}


def cells(**changes: Any) -> list[dict[str, Any]]:
    """Return cells of two schemes on four SoCs, of which three have one architecture.

    `changes`: those of the cell of the second SoC in the second scheme.
    """
    listed: list[dict[str, Any]] = []
    for number, scheme in enumerate(("8a8w", "16a8w")):
        for place, (soc, arch) in enumerate(SOCS.items()):
            own = {"settings": [f"soc.name={soc}", f"soc.arch={arch}"], "diagnosis": f"31.5 dB; try soc={soc}"}
            own |= {"lower_s": 1.0 + place, "latency_p50_ms": 2.0 + place, "samples": 8}
            listed.append(cell("toy", scheme, soc, **MEASURED, **own))
            if (number, place) == (1, 1):
                listed[-1] |= changes
    return table("cells", listed)


def columns(listed: list[dict[str, Any]]) -> list[tuple[Column, dict[str, Any]]]:
    return [((row["soc"],), row) for row in listed]


def test_equal_cells_of_one_architecture_are_one_column_whatever_time_they_took() -> None:
    found = {column[0]: first[0] for column, first in folds(columns(cells()), []).items()}
    assert found == {"SM8550": "SM8550", "SA8255": "SM8550", "QCS9100": "SM8550", "SM8650": "SM8650"}


@pytest.mark.parametrize(
    "change",
    [
        {"final_snr_db": 31.4},
        {"pte_bytes": 71_001},
        {"outcome": "failed", "stage": "lower", "error": "no kernel"},
        {"operators_introduced": 1},
        {"diagnosis": "30 dB"},
        {"timed_on": "device"},
        {"outputs_sha256": "0"},
        {"settings": ["soc.arch=75"]},
        {"settings": None},
    ],
)
def test_a_column_with_one_other_value_is_shown(change: dict[str, Any]) -> None:
    found = {column[0]: first[0] for column, first in folds(columns(cells(**change)), []).items()}
    assert found == {"SM8550": "SM8550", "SA8255": "SA8255", "QCS9100": "SM8550", "SM8650": "SM8650"}


def test_a_column_with_a_regression_is_shown_and_stands_for_no_other() -> None:
    listed = cells()
    found = folds(columns(listed), [listed[0]])
    assert {column[0]: first[0] for column, first in found.items()} == {
        "SM8550": "SM8550",
        "SA8255": "SA8255",
        "QCS9100": "SA8255",
        "SM8650": "SM8650",
    }


def test_columns_that_differ_in_something_beside_the_soc_are_not_one() -> None:
    listed = cells()
    found = folds([((row["soc"], "a" if row["soc"] == "SA8255" else "b"), row) for row in listed], [])
    assert found["SA8255", "a"] == ("SA8255", "a")
    assert found["QCS9100", "b"] == ("SM8550", "b")


@pytest.fixture
def folded(tmp_path: Path) -> str:
    path = tmp_path / "report.html"
    path.write_text(render(RUN, sweep(cells(), count=3), {}))
    return path.as_uri()


@pytest.mark.slow
def test_equal_socs_are_folded_in_the_page_and_can_be_unfolded(page: Page, folded: str) -> None:
    page.goto(folded)
    expect(page.locator(".matrix thead th:visible")).to_have_text(["scheme", "SM8550 = SA8255, QCS9100", "SM8650"])
    expect(page.locator(".matrix a:visible")).to_have_count(4)
    expect(page.locator(".cell:visible")).to_have_count(4)
    expect(page.locator(".cell:visible h3").first).to_have_text("toy 8a8w SM8550 = SA8255, QCS9100")
    expect(page.locator("#filter output")).to_have_text("8 cells")

    page.locator("[name=fold]").select_option("no")
    expect(page.locator(".matrix a:visible")).to_have_count(8)
    expect(page.locator(".cell:visible")).to_have_count(8)
    expect(page.locator(".also:visible")).to_have_count(0)
    assert page.url.endswith("#matrix?fold=no")

    page.goto("about:blank")
    page.goto(f"{folded}#toy/16a8w/QCS9100")
    expect(page.locator("#cell-6")).to_be_focused()
    expect(page.locator(".cell:visible")).to_have_count(8)


@pytest.mark.slow
def test_a_chosen_soc_is_shown_although_it_is_equal_to_another(page: Page, folded: str) -> None:
    page.goto(folded)
    page.locator("[name=soc]").select_option("SA8255")
    expect(page.locator(".matrix thead th:visible")).to_have_text(["scheme", "SA8255"])
    expect(page.locator(".cell:visible")).to_have_count(2)


@pytest.mark.slow
def test_a_regression_of_an_equal_soc_is_in_the_page(page: Page, tmp_path: Path) -> None:
    listed = cells()
    worse = trend(listed[1], "final_snr_db", 60.0, 0.1, verdict="regressed", first_bad_run=NIGHTS[-1])
    path = tmp_path / "report.html"
    path.write_text(render(RUN, sweep(listed, count=3) | {"trends": [worse]}, {}))
    page.goto(path.as_uri())
    expect(page.locator(".matrix thead th:visible")).to_have_text(["scheme", "SM8550 = QCS9100", "SA8255", "SM8650"])
