"""The page of a large run, in a real browser: its size, and how long it needs before it answers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from qnnsweep.tasks.report.page import render
from tests.sample_tables import LOG, RUN, cell, measured, sweep, trends

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]


def test_a_page_of_500_cells_with_300_operators_has_less_than_10_mb_and_is_not_laid_out_for_each_cell(
    page: Page, tmp_path: Path
) -> None:
    chance = random.Random(5)
    cells = [
        cell(f"model_{number // 25}", f"scheme_{number // 5 % 5}", f"SM{number % 5}", **measured(chance, 30.0))
        for number in range(500)
    ]
    tables, logs = sweep(cells, count=300) | {"trends": trends(cells)}, {LOG: "<warning> & so on\n" * 20_000}
    html = render(RUN, tables, logs).encode()
    assert len(html) < 10_000_000
    path = tmp_path / "report.html"
    path.write_bytes(html)

    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    page.goto(path.as_uri(), wait_until="domcontentloaded")
    page.locator("[name=scheme]").select_option("scheme_2")
    expect(page.locator("#filter output")).to_have_text("100 of 500 cells")
    page.evaluate(
        "document.querySelector('.matrix a[data-cell=\"60\"]').click()"
    )  # Playwright's click measures the page
    page.locator("#cell-60:focus .depth svg circle").first.wait_for(state="attached")
    metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
    layouts = metrics["LayoutCount"], metrics["RecalcStyleCount"]
    assert max(layouts) < 100, "the page is not laid out again for each cell"
