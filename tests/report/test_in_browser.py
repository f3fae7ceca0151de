"""Tests the report in a real browser: matrix, cell and operator, by mouse and keyboard, in wide and narrow windows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from conf.schema import Request
from flows.graph import comparison_options
from flows.resources import Resources
from flows.runs import results
from tasks.compare import compare
from tasks.records import Capture, LoweredProgram
from tasks.records.vocabulary import CAUSES, VERDICTS
from tasks.report.page import render
from tasks.results.outcome import CellResult
from tasks.results.rows import rows
from tests.sample_tables import CHANGED, LOGS, NIGHTS, RUN, nightly, sweep, trends

pytestmark = pytest.mark.toolchain


@pytest.fixture(scope="module")
def real(resources: Resources, request_8a8w: Request, lowered: LoweredProgram, capture: Capture) -> str:
    """The report of a sweep of one cell with the real toolchain and a real device, as `qnnsweep run` writes it."""
    compared = compare(
        lowered, capture, comparison_options(request_8a8w), store=resources.store, workers=resources.workers
    )
    cell = CellResult(
        request=request_8a8w,
        stage="compare",
        exported=lowered.quantized.exported,
        quantized=lowered.quantized,
        lowered=lowered,
        capture=capture,
        comparison=compared,
    )
    written = results.write(RUN, rows(RUN.run_id, [cell], resources.workers.identity), resources.store, trend=None)
    return written.page.absolute().as_uri()


@pytest.fixture(scope="module")
def sample_report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a run of 27 cells of every outcome, with trends over fifty nights."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(RUN, sweep(nightly()) | {"trends": trends(nightly())}, LOGS))
    return path.as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium, "there is no chromium: .ci/machine installs it"
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=sandbox)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that must log nothing to its console and must make no request to a network."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    page = context.new_page()
    logged: list[str] = []
    requested: list[str] = []
    page.on("console", lambda message: logged.append(message.text))
    page.on("pageerror", lambda error: logged.append(str(error)))
    page.on("request", lambda request: requested.append(request.url))
    page.set_default_timeout(30_000)
    yield page
    context.close()
    assert logged == []
    assert [url for url in requested if not url.startswith("file:")] == []


def fragment(page: Page) -> str:
    return page.url.partition("#")[2]


def assert_only_tables_scroll_sideways(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") == page.viewport_size["width"]


def test_a_click_leads_from_the_matrix_to_the_cell_to_the_operator_and_back(
    page: Page, real: str, tmp_path: Path
) -> None:
    page.goto(real)
    expect(page.locator("h1")).to_have_text("The one cell passed")
    page.screenshot(path=tmp_path / "matrix.png")
    page.locator(".matrix a").click()
    assert fragment(page) == "cell-0"
    expect(page.locator("#cell-0")).to_be_focused()
    page.screenshot(path=tmp_path / "cell.png")

    chart = page.locator("#cell-0 .depth svg")
    chart.hover(position={"x": chart.bounding_box()["width"] - 12, "y": 60})
    expect(page.locator(".depth .readout")).to_contain_text("aten_max_pool2d_with_indices_default[1]: unused")
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
    page.locator("#cell-0").get_by_text("↑ Matrix").click()
    expect(page.locator(".matrix a")).to_be_focused()


def test_a_click_on_the_chart_shows_the_operator_under_it(page: Page, real: str) -> None:
    page.goto(f"{real}#cell-0")
    chart = page.locator("#cell-0 .depth svg")
    chart.click(position={"x": chart.bounding_box()["width"] - 12, "y": 60})
    expect(page.locator(".operator h4")).to_have_text("17 aten_max_pool2d_with_indices_default[1]")
    page.go_back()
    expect(page.locator(".operator")).to_be_hidden()


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
    assert fragment(page) == "cell-1/operator-2"
    expect(page.locator("#cell-1 .operator")).to_be_focused()
    page.keyboard.press("Escape")
    assert fragment(page) == "cell-1"
    expect(page.locator("#cell-1 .operator")).to_be_hidden()
    page.keyboard.press("Escape")
    assert fragment(page) == "matrix"
    expect(focused).to_have_attribute("data-cell", "1")


def test_filters_narrow_matrix_and_cells_and_are_stored_in_the_address(page: Page, sample_report: str) -> None:
    page.goto(sample_report)
    page.locator("[name=scheme]").select_option("8a8w")
    page.locator("[name=soc]").select_option("SM8650")
    page.locator("[name=measure]").select_option("latency")
    assert fragment(page) == "matrix?measure=latency&scheme=8a8w&soc=SM8650"
    expect(page.locator(".matrix a:visible")).to_have_count(3)
    expect(page.locator(".cell:visible")).to_have_count(3)
    expect(page.locator("#filter output")).to_have_text("3 of 27")

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


def test_a_cell_shows_its_diagnosis_on_top_and_the_error_budget_with_its_totals(
    page: Page, sample_report: str, tmp_path: Path
) -> None:
    page.goto(f"{sample_report}#cell-6")
    sentence = page.locator("#cell-6 .diagnosis")
    expect(sentence).to_contain_text("of which 76 % are the grids of 6 additions (layers.0.attention +5)")
    budget = page.locator("#cell-6 .budget")
    assert sentence.bounding_box()["y"] < page.locator("#cell-6 .facts").bounding_box()["y"]
    expect(budget).to_contain_text("Error budget of output logits")
    totals = budget.locator("tbody tr")
    assert [total.locator("th").inner_text() for total in totals.all()] == list(CAUSES)
    assert budget.locator("tr .strong").all_text_contents() == [
        "21.0 %", "9.0 %", "76.0 %", "5.0 %", "-13.0 %", "2.0 %", "100.0 %",
    ]  # fmt: skip
    # A bar begins where the bar above it ends; a negative share goes back.
    bars = [bar.bounding_box() for bar in budget.locator(".share").all()]
    assert [bar["x"] for bar in bars[1:4]] == pytest.approx([bar["x"] + bar["width"] for bar in bars[:3]], abs=1)
    assert bars[4]["x"] + bars[4]["width"] == pytest.approx(bars[3]["x"] + bars[3]["width"], abs=1)
    assert budget.locator("tr").nth(1).locator(".cause-name").get_attribute("title") == CAUSES["weights"]
    page.screenshot(path=tmp_path / "budget.png")


def test_the_largest_operators_are_named_by_module_and_lead_to_their_cards(page: Page, sample_report: str) -> None:
    page.goto(f"{sample_report}#cell-6")
    lines = page.locator("#cell-6 .shares tbody tr")
    expect(lines).to_have_count(12)
    expect(lines.first).to_contain_text("features.9.block.7")
    expect(lines.first).to_contain_text("42.0 %")
    expect(lines.nth(8)).to_contain_text("2.4 ± 0.5 %")
    page.locator("#cell-6").get_by_role("button", name="Show all 40").press("Enter")
    expect(lines).to_have_count(40)
    expect(lines.nth(12).locator("a")).to_be_focused()
    page.keyboard.press("Enter")
    assert fragment(page) == "cell-6/operator-67"
    expect(page.locator("#cell-6 .operator")).to_be_focused()
    assert page.locator("#cell-6 .operator td[data-verdict]").get_attribute("title") in VERDICTS.values()


def test_the_budget_of_another_final_output_can_be_chosen(page: Page, tmp_path: Path) -> None:
    tables = sweep(nightly()[1:2])
    boxes = [row | {"output_index": 1, "output": "boxes", "share": None} for row in tables["budget"]]
    path = tmp_path / "report.html"
    path.write_text(render(RUN, tables | {"budget": [*tables["budget"], *boxes]}, LOGS))
    page.goto(f"{path.as_uri()}#cell-0")
    choice = page.locator(".budget select")
    expect(choice).to_have_value("0")
    choice.select_option("boxes")
    expect(page.locator(".budget")).to_contain_text("Output boxes has no budget")
    expect(page.locator(".shares tr")).to_have_count(0)
    expect(choice).to_be_focused()
    choice.select_option("logits")
    expect(page.locator(".shares tbody tr")).to_have_count(12)


def test_the_ladder_is_drawn_as_a_path_to_the_device_with_the_worst_rung_marked(page: Page, sample_report: str) -> None:
    page.goto(f"{sample_report}#cell-6")
    rungs = page.locator("#cell-6 .ladder tbody tr")
    expect(rungs.locator(".track svg")).to_have_count(5)
    names = ["eager", "exported", "edge", "designed", "device", "quantized"]
    assert [rung.locator("th").inner_text() for rung in rungs.all()] == names
    assert [rung.locator(".path").count() for rung in rungs.all()] == [0, 1, 2, 2, 1, 0]
    assert [rung.locator(".path.worst").count() for rung in rungs.all()] == [0, 1, 1, 0, 0, 0]
    positions = [float(rung.locator("circle").get_attribute("cx") or "") for rung in rungs.all()[1:5]]
    assert positions == sorted(positions, reverse=True)
