"""Tests the pictures on the card of an operator, and its neighbours, in a real browser."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from qnnsweep.tasks.report.page import render
from tests.sample_tables import LOGS, RUN, nightly, sweep

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]

WORST = "cell-6/operator-21"


def test_the_card_of_an_operator_has_pictures_of_its_error(page: Page, sample_report: str, tmp_path: Path) -> None:
    page.goto(f"{sample_report}#{WORST}")
    card = page.locator("#cell-6 .operator")
    figures = card.locator(".pictures figure")
    expect(figures.locator("figcaption")).to_have_text(
        ["Error of the elements", "Error per channel", "Range of the values and of the grid", "Error over the plane"]
    )
    expect(figures.locator(".readout")).to_have_text(
        [
            "8.9 % of 10,140 elements are within ±0.0781.",
            "Axis 1. Largest: channel 21, 1.75 steps rms; median 0.35.",
            "Values -0.75 to 6 use 84.4 % of the grid, -1 to 7.",
            "From 0 to 0.562 steps rms (the strongest colour).",
        ]
    )
    bars = [figures.nth(number).locator("rect.column") for number in (0, 1)]
    assert [group.count() for group in bars] == [23, 32]
    heights = bars[1].evaluate_all("bars => bars.map(bar => bar.getBoundingClientRect().height)")
    assert np.argmax(heights) == 21
    assert max(heights) > 80
    expect(bars[1].nth(21)).to_have_class("column marked")
    assert figures.nth(3).locator("rect.tile").count() == 256
    command = "qnnsweep tensors 20261121T0230Z-4f1c efficientnet_lite0/8a8w/SM8550/qnn/local"
    expect(card.locator("code").last).to_have_text(f"{command} aten_convolution_default_21 --sample=0")
    card.screenshot(path=tmp_path / "card.png")


def test_the_neighbours_are_links_with_the_values_on_their_edges(page: Page, sample_report: str) -> None:
    page.goto(f"{sample_report}#{WORST}")
    neighbours = page.locator("#cell-6 .neighbours")
    expect(neighbours.locator("ul")).to_have_count(2)
    before, after = neighbours.get_by_role("list", name="reads"), neighbours.get_by_role("list", name="read by")
    expect(before.locator("a small").first).to_have_text("aten_convolution_default_20")
    expect(after.locator("a small").first).to_have_text("aten_add_Tensor_22")
    expect(neighbours.locator(".here .mark")).to_have_text("introduced")
    rows = page.locator("#cell-6 .operator .scroll tbody tr")
    expect(after.locator(".edge")).to_have_text(f"{rows.first.locator('td').nth(5).text_content()} dB")
    after.locator("a").focus()
    page.keyboard.press("Enter")
    card = page.locator("#cell-6 .operator")
    expect(card).to_be_focused()  # and not lost with the link that was replaced
    expect(card.locator("h4")).to_have_text("22 aten_add_Tensor_22")


def test_an_operator_without_details_says_why(page: Page, sample_report: str, tmp_path: Path) -> None:
    page.goto(f"{sample_report}#cell-6/operator-60")
    card = page.locator("#cell-6 .operator")
    expect(card).to_contain_text("only of the 16 operators that matter most in this cell")
    expect(card.locator("code").last).to_contain_text("qnnsweep tensors")
    path = tmp_path / "report.html"
    path.write_text(render(RUN, sweep(nightly()) | {"details": []}, LOGS))
    page.goto(f"{path.as_uri()}#{WORST}")
    expect(card).to_contain_text("This run has no distribution of errors")


def test_a_real_report_has_the_details_of_its_worst_operator(page: Page, real: str) -> None:
    page.goto(f"{real}#cell-0")
    page.locator(".worst-operator a").click()
    expect(page.locator(".operator .pictures svg").first).to_be_visible()
    expect(page.locator(".operator .neighbours .node")).not_to_have_count(0)
