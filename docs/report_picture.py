"""Write docs/report.png: one cell of a report, with its diagnosis, its error budget and the operators behind its error.

Run `python docs/report_picture.py REPORT CELL`, for example with `artifacts/runs/<run>/report.html` and
`minilm_l6/16a8w/SM8650`. The picture in this folder shows this cell in the report of:

    qnnsweep run model=minilm_l6 scheme=16a8w soc=SM8650 measure.operator_samples=2 \\
        'tolerance.final_snr_db={16a8w:30}'
"""

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).with_name("report.png")


def main(report: str, cell: str) -> None:
    """Write the picture. `cell`: the cell as in its permanent link."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        page = browser.new_page(viewport={"width": 1200, "height": 2200}, color_scheme="light")
        page.goto(f"{Path(report).absolute().as_uri()}#{cell}")
        number = page.locator(".cell.here").get_attribute("id")
        chosen = page.locator(f"#{number}")
        chosen.locator(".depth svg").wait_for()
        chosen.evaluate("cell => { cell.classList.remove('here'); document.activeElement.blur(); }")
        chosen.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
