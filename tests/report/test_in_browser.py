"""Tests the report in a real browser: matrix, cell and operator, by mouse and keyboard, in wide and narrow windows."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from qnnsweep.tasks.records.vocabulary import CAUSES
from qnnsweep.tasks.report.glossary import MEASURES
from tests.sample_tables import CHANGED, NIGHTS, nightly

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]


def fragment(page: Page) -> str:
    return page.url.partition("#")[2]


def assert_only_tables_scroll_sideways(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") == page.viewport_size["width"]


def test_a_click_leads_from_the_matrix_to_a_cell_and_back(page: Page, sample_report: str) -> None:
    page.goto(sample_report)
    cell = page.locator(".matrix a").nth(2)
    cell.click()
    assert fragment(page) == "cell-2"
    expect(page.locator("#cell-2")).to_be_focused()
    page.locator("#cell-2").get_by_text("↑ Matrix").click()
    expect(cell).to_be_focused()


def test_a_click_leads_from_a_single_cell_which_needs_no_matrix_to_its_operator_and_back(
    page: Page, real: str, tmp_path: Path
) -> None:
    page.goto(real)
    expect(page.locator("h1")).to_have_text("The one cell passed")
    expect(page.locator(".matrix")).to_be_hidden()
    expect(page.locator("#filter")).to_be_hidden()
    expect(page.locator("#cell-0 .budget figcaption")).to_have_text("Error budget of the final output")
    page.screenshot(path=tmp_path / "cell.png")

    chart = page.locator("#cell-0 .depth svg")
    chart.hover(position={"x": chart.bounding_box()["width"] - 12, "y": 60})
    expect(page.locator(".depth .readout")).to_contain_text("16 aten_linear_default: total")
    page.locator(".worst-operator a").click()
    card = page.locator("#cell-0 .operator")
    name = page.locator(".worst-operator").text_content()
    expect(card.locator("h4")).to_contain_text(name or "?")
    expect(card).to_be_focused()
    expect(card.locator("tbody tr")).to_have_count(2)  # one row per captured sample
    page.screenshot(path=tmp_path / "operator.png")

    card.get_by_text("in the table").click()
    expect(page.locator("tr.picked")).to_have_count(2)
    expect(page.locator("tr.picked").first).to_be_in_viewport()
    page.locator("tr.picked a").first.click()
    card.get_by_text("↑ cell").click()
    assert fragment(page) == "cell-0"
    expect(card).to_be_hidden()
    page.locator("#cell-0 nav").get_by_text("Log").click()
    expect(page.locator("#cell-0-log pre")).to_be_visible()


def test_a_click_on_the_chart_shows_the_operator_under_it(page: Page, real: str) -> None:
    page.goto(f"{real}#cell-0")
    chart = page.locator("#cell-0 .depth svg")
    chart.click(position={"x": chart.bounding_box()["width"] - 12, "y": 60})
    expect(page.locator(".operator h4")).to_have_text("16 aten_linear_default")
    page.go_back()
    expect(page.locator(".operator")).to_be_hidden()


def test_a_meaning_is_shown_on_hover_focus_and_touch_and_hidden_by_escape(
    page: Page, browser: Browser, sample_report: str
) -> None:
    page.goto(f"{sample_report}#cell-6")
    tip, word = page.locator("#tip"), page.locator("#cell-6 .word", has_text="observer effect")
    expect(tip).to_be_hidden()
    word.hover()
    expect(tip).to_have_text(MEASURES["observer effect"])
    page.mouse.move(0, 0)
    expect(tip).to_be_hidden()
    word.focus()
    expect(tip).to_be_visible()
    assert word.get_attribute("aria-describedby") == "tip"
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    assert fragment(page) == "cell-6"  # Escape goes up only if no meaning is shown
    page.locator("#cell-6 .budget .cause-name").first.hover()
    expect(tip).to_have_text(CAUSES["graph"])

    context = browser.new_context(viewport={"width": 400, "height": 800}, has_touch=True, offline=True)
    phone = context.new_page()
    phone.goto(f"{sample_report}#cell-6")
    phone.locator("#cell-6 .word", has_text="observer effect").tap()
    expect(phone.locator("#tip")).to_have_text(MEASURES["observer effect"])
    box = phone.locator("#tip").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 400
    context.close()


def test_the_table_of_operators_begins_with_the_worst_and_folds_what_does_not_exist_on_the_device(
    page: Page, sample_report: str
) -> None:
    page.goto(f"{sample_report}#cell-6-operators")
    panel = page.locator("#cell-6-operators")
    panel.locator("tbody tr").first.wait_for()
    heads = panel.locator("thead button").all_text_contents()
    assert heads[:4] == ["module", "operator", "verdict", "final output with only its introduced error, dB"]
    verdicts = panel.locator("tbody td[data-verdict]").all_text_contents()
    assert verdicts[0] == "introduced"
    assert verdicts == sorted(verdicts, key=["introduced", "grid", "inherited", "blind", "within_grid"].index)
    expect(panel.locator("output")).to_have_text("77 of 80")
    panel.get_by_label("also the 3 that do not exist").check()
    expect(panel.locator("output")).to_have_text("80 of 80")
    panel.get_by_label("Verdict").select_option("introduced")
    expect(panel.locator("tbody tr")).to_have_count(1)
    panel.get_by_label("Find").fill("no such operator")
    expect(panel.locator("output")).to_have_text("no row has all of this")


def test_a_table_is_saved_as_csv(page: Page, sample_report: str, tmp_path: Path) -> None:
    page.goto(f"{sample_report}#cell-6-delegation")
    with page.expect_download() as download:
        page.locator("#cell-6-delegation").get_by_role("button", name="Save as CSV").click()
    assert download.value.suggested_filename == "efficientnet_lite0-8a8w-SM8550-delegation.csv"
    download.value.save_as(tmp_path / "saved.csv")
    with (tmp_path / "saved.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["operator", "occurrences_delegated", "occurrences_not_delegated", "refusals"]
    assert (len(rows), rows[2]["refusals"]) == (4, "[ERROR] Op add: rank 6 is not supported by HTP")


def test_a_cell_has_a_link_by_its_names(page: Page, sample_report: str) -> None:
    page.goto(f"{sample_report}#efficientnet_lite0/8a8w/SM8650")
    expect(page.locator("#cell-6, #cell-7").locator("visible=true").and_(page.locator(":focus"))).to_have_count(1)
    page.locator(":focus .permalink").click()
    assert fragment(page) == "efficientnet_lite0/8a8w/SM8650"


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing(browser: Browser, sample_report: str, real: str, colours: Literal["light", "dark"]) -> None:
    context = browser.new_context(color_scheme=colours, bypass_csp=True, offline=True)  # axe is no script of the page
    page = context.new_page()
    for url in (f"{sample_report}#cell-6/operator-21", f"{real}#cell-0"):
        page.goto(url)
        page.locator(".cell.here").first.wait_for()
        page.locator("details").evaluate_all("parts => parts.slice(-20).forEach(part => { part.open = true })")
        violations = Axe().run(page).response["violations"]
        assert [(rule["id"], [node["html"][:200] for node in rule["nodes"]]) for rule in violations] == []
    context.close()


def test_every_step_can_be_done_with_the_keyboard(page: Page, sample_report: str) -> None:
    page.goto(f"{sample_report}#matrix")
    focused = page.locator(":focus")
    expect(focused).to_have_attribute("data-cell", "0")
    for key, cell in (("ArrowRight", 1), ("ArrowDown", 4), ("End", 5), ("ArrowUp", 2), ("Home", 0), ("ArrowUp", 0)):
        page.keyboard.press(key)
        expect(focused).to_have_attribute("data-cell", str(cell))
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.locator("#cell-1")).to_be_focused()
    assert fragment(page) == "cell-1"

    while page.evaluate("document.activeElement.parentElement.className") != "depth":
        page.keyboard.press("Tab")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#cell-1 .readout").last).to_contain_text("2 aten_add_Tensor_2: total")
    page.keyboard.press("Enter")
    expect(page.locator("#cell-1 .operator")).to_be_focused()
    assert fragment(page) == "cell-1/operator-2"
    page.keyboard.press("Escape")
    expect(page.locator("#cell-1 .operator")).to_be_hidden()
    assert fragment(page) == "cell-1"
    page.keyboard.press("Escape")
    expect(focused).to_have_attribute("data-cell", "1")
    assert fragment(page) == "matrix"


def test_filters_narrow_matrix_and_cells_and_are_stored_in_the_address(page: Page, sample_report: str) -> None:
    page.goto(sample_report)
    page.locator("[name=scheme]").select_option("8a8w")
    page.locator("[name=soc]").select_option("SM8650")
    page.locator("[name=measure]").select_option("latency")
    assert fragment(page) == "matrix?measure=latency&scheme=8a8w&soc=SM8650"
    expect(page.locator(".matrix a:visible")).to_have_count(3)
    expect(page.locator(".cell:visible")).to_have_count(3)
    expect(page.locator("#filter output")).to_have_text("3 of 27 cells")

    page.reload()
    expect(page.locator(".matrix a:visible")).to_have_count(3)
    page.locator(".matrix a:visible").first.click()
    assert fragment(page) == "cell-7?measure=latency&scheme=8a8w&soc=SM8650"
    page.locator("[name=text]").fill("no such thing")
    expect(page.locator(".cell:visible")).to_have_count(0)
    page.get_by_role("button", name="Clear").click()
    expect(page.locator(".cell:visible")).to_have_count(27)
    page.locator("[name=outcome]").select_option("failed")
    expect(page.locator(".cell:visible")).to_have_count(2)
    # A link to a hidden cell shows the cell all the same.
    page.locator(".chips").get_by_text("digits 8a8w SM8850").click()
    expect(page.locator("#cell-26")).to_be_focused()


def test_the_matrix_shows_and_is_coloured_by_the_selected_number(page: Page, sample_report: str) -> None:
    page.goto(sample_report)
    texts: dict[str, list[str]] = {}
    colours: dict[str, int] = {}
    for measure in ("snr", "cosine", "top1", "latency", "size", "coverage"):
        page.locator("[name=measure]").select_option(measure)
        texts[measure] = page.locator(".matrix b").all_text_contents()
        backgrounds = "links => new Set(links.map(link => getComputedStyle(link).backgroundColor)).size"
        colours[measure] = page.locator(".matrix .heat").evaluate_all(backgrounds)
    undefined = [number for number, cell in enumerate(nightly()) if cell["final_snr_db"] is None]
    assert {tuple(i for i, text in enumerate(cells) if text == "–") for cells in texts.values()} == {tuple(undefined)}
    assert colours["snr"] > 10
    assert colours["coverage"] == 1  # 71 of 80 everywhere
    assert page.locator(".matrix svg.icon").count() == 27


def test_a_regression_leads_to_its_series_with_the_first_bad_night_marked(
    page: Page, sample_report: str, tmp_path: Path
) -> None:
    page.goto(sample_report)
    section = page.locator("#regressions")
    expect(section).to_contain_text(NIGHTS[-3])
    assert section.locator(".changed li").all_text_contents() == CHANGED
    section.get_by_text("efficientnet_lite0 8a8w SM8650").click()
    assert fragment(page) == "cell-7-trends"
    lines = page.locator("#cell-7-trends tbody tr")
    expect(lines).to_have_count(3)
    assert [line.get_attribute("data-verdict") for line in lines.all()] == ["regressed", "still_bad", "steady"]
    assert [line.locator("circle.bad").count() for line in lines.all()] == [1, 1, 0]
    expect(lines.nth(1)).to_contain_text(CHANGED[0])
    page.screenshot(path=tmp_path / "trends.png")
    lines.first.locator("a").click()
    expect(page.locator("#cell-7 .operator h4")).to_have_text("21 aten_convolution_default_21")


def test_a_narrow_window_scrolls_sideways_in_tables_only(page: Page, sample_report: str, tmp_path: Path) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(sample_report)
    assert_only_tables_scroll_sideways(page)
    page.screenshot(path=tmp_path / "narrow_matrix.png")
    for place in (
        "cell-6/operator-21",
        "cell-6-trends",
        "cell-6-operators",
        "cell-6-delegation",
        "cell-6-log",
        "cell-0",
    ):
        page.goto(f"{sample_report}#{place}")
        assert_only_tables_scroll_sideways(page)
        page.screenshot(path=tmp_path / f"narrow_{place.replace('/', '_')}.png")


def test_the_dark_page_has_its_own_colours(page: Page, sample_report: str, tmp_path: Path) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto(f"{sample_report}#cell-6/operator-21")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 20, 19)"
    page.screenshot(path=tmp_path / "dark.png")
