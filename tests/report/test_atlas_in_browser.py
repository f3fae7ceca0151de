"""The filters of an operator atlas in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from qnnsweep.tasks.report.atlas import render_atlas
from tests.report.test_atlas import ROWS
from tests.sample_tables import RUN

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]


def test_cases_are_filtered_by_text_and_by_state(page: Page, tmp_path: Path) -> None:
    (tmp_path / "atlas.html").write_text(render_atlas(RUN, ROWS))
    page.goto((tmp_path / "atlas.html").as_uri())
    lines, count = page.locator("#cases tbody tr:visible"), page.locator("#count")
    expect(lines).to_have_count(3)
    assert not Axe().run(page).response["violations"]
    page.get_by_role("searchbox").fill("stays on the <CPU>")
    expect(lines).to_have_count(1)
    expect(count).to_have_text("1 case")
    page.get_by_role("searchbox").fill("")
    page.get_by_label("aborted").uncheck()
    page.get_by_label("cpu").uncheck()
    expect(count).to_have_text("2 cases")
    assert lines.all_inner_texts()[0].startswith("add")
