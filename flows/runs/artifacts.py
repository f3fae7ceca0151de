"""A run's Prefect artifacts: its progress, its cells as a table and as Markdown, and links to its files."""

import shlex
import threading
import time
from collections.abc import Callable, Sequence
from typing import cast
from uuid import UUID

from prefect import artifacts

from qnnsweep.conf.plan import PlannedCell
from qnnsweep.flows.forecasts.costs import EtaEstimate
from qnnsweep.flows.runs.regressions import regressions_markdown
from qnnsweep.flows.runs.results import SweepResult, report_name, run_folder
from qnnsweep.tasks.report.format import with_places
from qnnsweep.tasks.report.page import summary_markdown, summary_rows
from qnnsweep.tasks.storage.store import Store

UPDATE_EVERY_S = 1.0


class CellsDone:
    """The percentage of cells that have ended. Any thread can update it. The flow's thread publishes it each second."""

    def __init__(
        self,
        cells: Sequence[PlannedCell],
        publish: Callable[[float], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._eta = EtaEstimate(cells)
        self._all = len(cells)
        self._publish = publish
        self._clock = clock
        self._lock = threading.Lock()
        self._published = 0.0
        self._published_at = clock()

    def update(self, stage: str, label: str, state: str) -> None:
        """Record the new state of the stage's work with this label: `running`, `done`, `reused` or `failed`."""
        with self._lock:
            self._eta.update(stage, label, state)

    def show(self) -> None:
        """Publish the percentage if it has changed, at most once per `UPDATE_EVERY_S`."""
        if self._clock() - self._published_at >= UPDATE_EVERY_S:
            with self._lock:
                ended = self._all - self._eta.cells + self._eta.ended
            self._publish_change(100.0 * ended / self._all)

    def end(self) -> None:
        self._publish_change(100.0)

    def _publish_change(self, percent: float) -> None:
        if percent != self._published:
            self._publish(percent)
            self._published, self._published_at = percent, self._clock()


def create_progress(run_id: str, cells: int) -> Callable[[float], object]:
    """Create the run's progress artifact and return a function that updates its percentage."""
    description = f"{run_id}: cells that have ended, of {cells}"
    created = artifacts.create_progress_artifact(key="cells-done", progress=0.0, description=description)
    artifact = cast(UUID, created)  # not a coroutine, because a flow's thread has no event loop
    return lambda percent: artifacts.update_progress_artifact(artifact_id=artifact, progress=percent)


def create_artifacts(result: SweepResult, store: Store, reports_url: str) -> None:
    """Create the run's artifacts under keys that all runs of the flow share.

    `reports_url`: where `qnnsweep ui` serves the reports. A browser opens no local file from a link in Prefect's UI.
    """
    run = result.run
    cells = with_places(result.cells, run)
    report = f"{reports_url}/{report_name(run.run_id)}"
    files = f"{reports_url}/{run_folder(run.run_id)}/files/"
    needs = f"while this runs: `qnnsweep ui --artifacts={shlex.quote(store.display_path('').rstrip('/'))}`"
    links = f"[Report]({report}) and [files]({files}), {needs}"
    counts = result.counts
    markdown = summary_markdown(run, cells, links) + regressions_markdown(counts)
    artifacts.create_markdown_artifact(key="sweep", markdown=markdown, description=f"`{shlex.join(run.command)}`")
    about = f"{run.run_id}: {', '.join(counts.in_words())}"
    artifacts.create_table_artifact(key="cells", table=summary_rows(cells), description=about)
    artifacts.create_link_artifact(
        key="report", link=report, link_text=f"Report of {run.run_id}", description=f"{run.run_id}: opens {needs}"
    )
    artifacts.create_link_artifact(
        key="files",
        link=files,
        link_text=f"Files of {run.run_id}: programs, dumps, traces",
        description=f"{run.run_id}: opens {needs}",
    )
