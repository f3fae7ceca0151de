"""Tests the figures of a report in a real browser: the budget, the ladder and the chart of operators."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from qnnsweep.tasks.records.vocabulary import CAUSES, VERDICTS
from qnnsweep.tasks.report.page import render
from tests.sample_tables import LOGS, RUN, nightly, sweep

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]


def test_the_pointer_selects_the_nearest_mark_and_not_the_nearest_column(page: Page, sample_report: str) -> None:
    page.goto(f"{sample_report}#cell-6")
    chart = page.locator("#cell-6 .depth svg")
    marks = chart.locator("circle:not(.worst, .picked)")
    marks.first.wait_for()
    chart.scroll_into_view_if_needed()
    # The right neighbour's mark is at another height: just left of the middle between both, it is the nearer one.
    boxes = [mark.bounding_box() for mark in marks.all()[:40]]
    at = {index: (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for index, box in enumerate(boxes)}
    left = max(range(39), key=lambda index: abs(at[index][1] - at[index + 1][1]))
    (x, _), (next_x, next_y) = at[left], at[left + 1]
    page.mouse.move(x + (next_x - x) * 0.45, next_y)
    picked = chart.locator(".picked")
    expect(picked).to_be_visible()
    box = picked.bounding_box()
    assert (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) == pytest.approx((next_x, next_y), abs=1)


def test_the_name_of_the_worst_operator_covers_no_mark(page: Page, sample_report: str) -> None:
    page.goto(f"{sample_report}#cell-6")
    chart = page.locator("#cell-6 .depth svg")
    name = chart.locator(".worst-name").bounding_box()
    expect(chart.locator(".worst-name")).to_contain_text("features.2.block.5")
    tops = [mark.bounding_box()["y"] for mark in chart.locator("circle:not(.picked), .introduced").all()]
    assert name["y"] + name["height"] <= min(tops)


def test_a_cell_shows_its_diagnosis_on_top_and_the_error_budget_with_its_totals(
    page: Page, sample_report: str, tmp_path: Path
) -> None:
    page.goto(f"{sample_report}#cell-6")
    sentence = page.locator("#cell-6 .diagnosis")
    expect(sentence).to_contain_text("of which 76 % are the grids of 6 additions (layers.0.attention and 5 more)")
    budget = page.locator("#cell-6 .budget")
    assert sentence.bounding_box()["y"] < page.locator("#cell-6 .facts").bounding_box()["y"]
    expect(budget).to_contain_text("Error budget of the final output logits")
    totals = budget.locator("tbody tr")
    assert [total.locator("th").inner_text() for total in totals.all()] == list(CAUSES)
    assert budget.locator("tr .strong").all_text_contents() == [
        "0.0 %", "21.0 %", "0.0 %", "9.0 %", "63.0 %", "0.0 %", "5.0 %", "0.0 %", "2.0 %", "100.0 %",
    ]  # fmt: skip
    # A bar begins where the bar above it ends. The bar of a share of 0 is 2 pixels wide.
    bars = [bar.bounding_box() for bar in budget.locator(".share").all()]
    assert [bar["x"] for bar in bars[1:9]] == pytest.approx([bar["x"] + bar["width"] for bar in bars[:8]], abs=2.5)
    assert budget.locator("tr").nth(1).locator(".cause-name").get_attribute("data-word") == "graph"
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
    expect(page).to_have_url(f"{sample_report}#cell-6/operator-67")
    expect(page.locator("#cell-6 .operator")).to_be_focused()
    assert page.locator("#cell-6 .operator td[data-verdict]").get_attribute("data-word") in VERDICTS


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
    expect(rungs.locator(".track svg")).to_have_count(6)
    names = ["eager", "exported", "lowered", "edge", "designed", "device", "quantized"]
    assert [rung.locator("th").inner_text() for rung in rungs.all()] == names
    assert [rung.locator(".path").count() for rung in rungs.all()] == [0, 1, 2, 2, 2, 1, 0]
    assert [rung.locator(".path.worst").count() for rung in rungs.all()] == [0, 0, 1, 1, 0, 0, 0]
    positions = [float(rung.locator("circle").get_attribute("cx") or "") for rung in rungs.all()[1:6]]
    assert positions == sorted(positions, reverse=True)
