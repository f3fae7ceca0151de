"""Tests two cells side by side in a real browser, and the pages of all runs and of the differences of two runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from qnnsweep.flows.runs.diff import CELL, CellDifference, Change, Difference
from qnnsweep.flows.runs.diff_page import write_page
from qnnsweep.tasks.storage.store import Store
from tests.sample_tables import RUN

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]

REGRESSED = Change(what="final_snr_db", unit="dB", before=30.0, after=20.0, limit=1.0, verdict="regressed")
STEADY = Change(what="pte_bytes", unit="B", before=1000.0, after=1001.0, limit=10.0, verdict="steady")
NAMES = dict.fromkeys(CELL) | {"model": "m", "scheme": "8a8w", "soc": "SM8650"}
CHANGED = CellDifference(cell=NAMES, changed=["qnn"], changes=[STEADY, REGRESSED])


@pytest.fixture
def differences(tmp_path: Path) -> Path:
    here = NAMES | {"model": "only", "scheme": "here", "soc": None}
    run_a = "20260101T000000Z-aaaa"
    both = Difference(run_a=run_a, run_b=RUN.run_id, only_in_a=[here], only_in_b=[], cells=[CHANGED])
    path = write_page(both, Store(tmp_path))
    assert path is not None
    return path


def test_a_second_cell_is_chosen_and_its_address_can_be_shared(page: Page, sample_report: str, tmp_path: Path) -> None:
    page.goto(f"{sample_report}#cell-6-beside")
    panel = page.locator("#cell-6-beside")
    choice = panel.get_by_label("Second cell")
    expect(choice.locator("option")).to_have_count(27)
    nearest = choice.locator("option").nth(1).text_content() or ""
    assert nearest.startswith("efficientnet_lite0/")
    choice.focus()
    choice.select_option(label="efficientnet_lite0/16a8w/SM8550")
    expect(choice).to_be_focused()
    assert page.url.endswith("#cell-6-beside/with-3")
    facts = panel.locator("table").first
    expect(facts.locator("thead th")).to_have_text(
        ["efficientnet_lite0/8a8w/SM8550", "efficientnet_lite0/16a8w/SM8550"]
    )
    expect(facts.locator("tbody tr").first).to_have_text("outcomepassedpassed")
    expect(facts.locator("tr.same").first).to_be_visible()
    operators = panel.locator("table").nth(1).locator("tbody tr")
    expect(operators).to_have_count(40)
    expect(operators.first.locator("small")).to_have_text("aten_convolution_default_21")  # damaged in 8a8w only
    expect(operators.first.locator("td[data-verdict]")).to_have_text(["introduced", "biased"])
    expect(panel).to_contain_text("31 more with smaller changes")
    page.screenshot(path=tmp_path / "beside.png")
    page.reload()
    expect(operators).to_have_count(40)
    operators.first.locator("th a").first.click()
    expect(page.locator("#cell-6 .operator")).to_be_focused()
    page.goto(f"{sample_report}#cell-6-beside/with-26")
    expect(panel).to_contain_text("No operator was compared in both cells.")


@pytest.mark.parametrize("width", [360, 1280])
def test_the_second_cell_fits_into_any_window(page: Page, sample_report: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{sample_report}#cell-6-beside/with-3")
    page.locator("#cell-6-beside table").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    heights = page.locator("#cell-6-beside tbody tr").evaluate_all("rows => rows.map(row => row.offsetHeight)")
    assert max(heights) < 120  # no column is so narrow that each letter is on a line of its own
    facts = page.locator("#cell-6-beside .facts-side")
    assert facts.evaluate("table => table.scrollWidth <= table.parentElement.clientWidth")


def test_the_differences_of_two_runs_are_a_page(page: Page, differences: Path) -> None:
    page.goto(differences.as_uri())
    expect(page.locator("h1")).to_have_text("1 of 1 common cell regressed, 1 cell lost")
    expect(page.locator("article").first).to_contain_text("Changed inputs: qnn.")
    expect(page.locator("tbody tr").first.locator("td")).to_have_text(
        ["final_snr_db", "30 dB", "20 dB", "1 dB", "regressed"]
    )
    page.get_by_text("1 value within the limits").click()
    expect(page.locator("tbody tr").nth(1).locator("td")).to_have_text(
        ["pte_bytes", "1,000 B", "1,001 B", "10 B", "steady"]
    )
    expect(page.locator("article").last).to_have_text("Only in 20260101T000000Z-aaaaonly · here")


def test_axe_finds_nothing_beside_and_in_the_differences(
    browser: Browser, sample_report: str, differences: Path
) -> None:
    context = browser.new_context(bypass_csp=True, offline=True)  # axe is no script of the page
    page = context.new_page()
    for url in (f"{sample_report}#cell-6-beside/with-3", differences.as_uri()):
        page.goto(url)
        page.locator("table.side").first.wait_for()
        violations = Axe().run(page).response["violations"]
        assert [(rule["id"], [node["html"][:200] for node in rule["nodes"]]) for rule in violations] == []
    context.close()
