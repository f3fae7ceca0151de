"""The reports that the tests open in a real browser, and the browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from qnnsweep.conf.schema import Request
from qnnsweep.flows.cells.graph import comparison_options
from qnnsweep.flows.cells.resources import Resources
from qnnsweep.flows.runs import results
from qnnsweep.tasks.compare import compare
from qnnsweep.tasks.records import Capture, LoweredProgram
from qnnsweep.tasks.report.page import render
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.results.rows import rows
from tests.sample_tables import LOGS, RUN, nightly, sweep, trends


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
