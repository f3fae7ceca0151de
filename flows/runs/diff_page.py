"""The page of the comparison of two runs, beside the report of the second run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qnnsweep.flows.runs.diff import Difference, cell_name, what_changed
from qnnsweep.flows.runs.regressions import with_unit
from qnnsweep.flows.runs.results import run_folder
from qnnsweep.tasks.errors import EnvironmentUnusable
from qnnsweep.tasks.report.page import STYLES
from qnnsweep.tasks.report.templates import html
from qnnsweep.tasks.storage.store import Store


def render(difference: Difference, links: Mapping[str, str], *, brief: bool = False) -> str:
    """Return the page. `links`: the address of each run's report. `brief`: leave out what is within its limits."""
    words: Mapping[str, Any] = {"name": cell_name, "what": what_changed, "with_unit": with_unit}
    return html("differences", styles=STYLES[:1], difference=difference, links=links, brief=brief, **words)


def write_page(difference: Difference, store: Store) -> Path | None:
    """Write the page, and return its path on this machine; None if the folder of the second run is not writable."""
    name = f"{run_folder(difference.run_b)}/diff-{difference.run_a}.html"
    page = render(difference, {difference.run_a: f"../{difference.run_a}/report.html", difference.run_b: "report.html"})
    try:
        store.files.write(name, page.encode())
    except EnvironmentUnusable:
        return None
    return store.files.local(name)
