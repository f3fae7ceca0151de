"""Write docs/notebook.png: a notebook that calls `qnnsweep.debug` on MiniLM in the scheme 16a8w, as Jupyter shows it.

Run `python docs/notebook_picture.py`. A kernel executes it; the picture has the last output of each cell.
"""

import html
import os
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).with_name("notebook.png")
CELLS = (
    """import qnnsweep
from qnnsweep.tasks.models.minilm import minilm_l6, sentences

model = minilm_l6()
samples = [sample["inputs"] for sample in sentences(32, split="calibration", tokens=32)]""",
    'result = qnnsweep.debug(model, samples, scheme="16a8w")\nresult',
    "result.culprit.module, result.culprit.cause",
)
PAGE = """<!doctype html><html><meta charset="utf-8"><style>
body { font: 14px system-ui, sans-serif; margin: 16px; width: 1040px; background: white; color: black }
pre { font: 13px monospace; margin: 0 }
.code { background: #f6f6f6; border: 1px solid #ddd; padding: 8px; margin: 10px 0 }
</style><body>"""


def main() -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(lines) for lines in CELLS])
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=1200, resources=resources).execute(env=dict(os.environ))
    parts = [PAGE]
    for cell in notebook.cells:
        parts.append(f'<div class="code"><pre>{html.escape(cell.source)}</pre></div>')
        for output in cell.outputs[-1:]:
            data = output.get("data", {})
            parts.append(data.get("text/html") or f"<pre>{html.escape(data.get('text/plain', ''))}</pre>")
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        page = browser.new_page(viewport={"width": 1080, "height": 300}, color_scheme="light")
        page.set_content("\n".join(parts))
        page.screenshot(path=PICTURE, full_page=True)
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
