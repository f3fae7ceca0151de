"""The history of all runs as pages: what got worse last night, since when, and which key changed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, sync_playwright

from qnnsweep.conf.schema import TrendConfig
from qnnsweep.flows.cli.main import command_line
from qnnsweep.flows.runs.site import Site
from qnnsweep.tasks.storage.store import Store
from tests.flows.runs.synthetic_history import cell_row, run_of, write_night
from tests.report.test_page import Page
from tests.sample_tables import RUN

SOCS = ("SM8550", "SM8650", "SM8750")
NIGHTS = 6
GOOD, BAD = run_of(NIGHTS - 2), run_of(NIGHTS - 1)
KEY = "model.calibration.count 64 → 1"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Six nights of a model on three SoCs, of which two regressed on the last night, when a key had changed.

    A repair came after the last night.
    """
    store, noise = Store(tmp_path_factory.mktemp("history")), np.random.default_rng(0)
    for night in range(NIGHTS + 1):
        cells = []
        for soc in SOCS:
            row = cell_row("a net", 0, [], noise) | {"run_id": run_of(night), "soc": soc, "device": "local"}
            row |= {"timed_on": "simulator", "latency_p50_ms": 2.0 + night % 2, "observer_effect_snr_db": 60.0}
            row |= {"final_snr_db": 31.0, "final_cosine": 0.999, "final_difference": "finite"}
            row |= {"settings": ["model.calibration.count=64"], "verb": "repair" if night == NIGHTS else "run"}
            if night == NIGHTS - 1 and soc != "SM8750":
                row |= {"final_snr_db": 11.2, "model_digest": "other", "settings": ["model.calibration.count=1"]}
            cells.append(row)
        write_night(store, cells, [], TrendConfig())
        facts = asdict(replace(RUN, run_id=run_of(night), seconds=60.0 + night))
        store.files.write(f"runs/{run_of(night)}/run.json", json.dumps(facts).encode())
    return store


def text_of(page: str | None) -> str:
    return " ".join(" ".join(Page(page or "").text).split()).replace(" , ", ", ")


def test_the_first_page_says_what_got_worse_since_when_and_which_key_changed(store: Store) -> None:
    site = Site(store)
    text = text_of(site.page("index.html"))
    begin = "2026-09-06 22:00 UTC, 1 min 5 s 2 of 3 cells regressed a net 8a8w SM8550, SM8650"
    assert text.startswith(f"qnnsweep: nights {begin}")
    assert f"final_snr_db 31 dB → 11.2 dB since 2026-09-06 22:00, this run ( diff ) changed then: {KEY}" in text
    grid = text[text.index("The night at a glance") : text.index("Runs time")]
    assert re.findall(r"([✓▼]) ([\d.]+) (SM[^✓▼]*?)(?= [✓▼]|$| *Runs)", grid.strip()) == [
        ("▼", "11.2", "SM8550, SM8650 · regressed"),
        ("✓", "31.0", "SM8750"),
    ]


def test_a_run_has_its_time_duration_command_counts_and_what_changed(store: Store) -> None:
    page = Site(store).page("index.html") or ""
    rows = re.findall(r"<tr id=.*?</tr>", page)
    times = [re.search(r'class="time">([^<]+)<', row)[1] for row in rows]  # type: ignore[index]
    assert times == ["2026-09-06 22:00", *(f"2026-09-0{day} 22:00" for day in (7, 5, 4, 3, 2, 1))]
    assert [text_of(row).startswith(f"{times[0]} 1 min 5 s run") for row in rows[:1]] == [True]
    assert f"{KEY} (2 cells)" in text_of(rows[0])
    assert "1 min 6 s" in text_of(rows[1])
    assert ">repair<" in rows[1]


def test_a_cell_has_its_numbers_over_the_nights_with_what_changed(store: Store) -> None:
    (name,) = [name for name in Site(store).names() if "SM8650" in name]
    page = Site(store).page(name) or ""
    text = text_of(page)
    assert f"final_snr_db 31 dB → 11.2 dB since 2026-09-06 22:00 ( diff ), changed then: {KEY}" in text
    assert f"2026-09-06 22:00 passed 11.2 0.98 3 70,000 {KEY}, final_snr_db regressed" in text
    assert "2026-09-05 22:00 passed 31 0.98 2 70,000 2026-09-04" in text
    assert (page.count('class="fall"'), page.count('class="mark"')) == (1, 2)  # the mark of the other two series
    assert text.count(":00 passed") == NIGHTS  # the repair is no night


def test_a_regression_leads_to_the_diff_of_the_cells_that_regressed(store: Store) -> None:
    site = Site(store)
    assert site.names() == [
        "index.html",
        *(name for name in site.names() if name.startswith("cells/")),
        f"diff/{GOOD}..{BAD}.html",
    ]
    text = text_of(site.page(f"diff/{GOOD}..{BAD}.html"))
    assert ("2 of 2 common cells regressed" in text, "SM8750" in text) == (True, False)
    assert site.page(f"diff/{BAD}..{GOOD}.html") is None
    assert site.page("cells/../index.html") is None


def test_every_link_of_a_written_site_leads_to_a_page(store: Store, tmp_path: Path) -> None:
    place = tmp_path / "site"
    assert command_line(["report", f"artifacts={store.root}", f"--site={place}"]) == 0
    pages = [*place.rglob("*.html")]
    assert len(pages) == 1 + len(SOCS) + 1
    for page in pages:
        links = {link.partition("#")[0] for link in re.findall(r'href="([^"]+)"', page.read_text())} - {""}
        assert [link for link in links if not (page.parent / link).is_file()] == []


def test_a_store_without_a_run_has_a_page_that_says_so(tmp_path: Path) -> None:
    assert "No run yet" in text_of(Site(Store(tmp_path)).page("index.html"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=sandbox)
        yield browser
        browser.close()


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 800, 1400])
def test_the_pages_fit_into_any_window_and_axe_finds_nothing(
    browser: Browser, store: Store, tmp_path: Path, width: int
) -> None:
    Site(store).write(tmp_path)
    for colours in ("light", "dark"):
        size = {"width": width, "height": 900}
        context = browser.new_context(color_scheme=colours, bypass_csp=True, viewport=size)  # type: ignore[arg-type]
        page = context.new_page()
        for file in sorted(tmp_path.rglob("*.html")):
            page.goto(file.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert Axe().run(page).response["violations"] == []
        context.close()
