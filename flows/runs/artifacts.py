"""What the Prefect UI shows of a run: how far it is, its cells as a table and as Markdown, where its files are."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Sequence
from typing import cast
from uuid import UUID

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from conf.plan import PlannedCell
from flows.runs.eta import Pace
from flows.runs.regressions import regressions_markdown
from flows.runs.results import SweepResult, report_name, run_folder
from tasks.report.page import summary_markdown, summary_rows
from tasks.storage.store import Store

UPDATE_EVERY_S = 1.0


class CellsDone:
    """How many of a run's cells have ended: told from any thread, passed on by the flow's own once a second."""

    def __init__(
        self,
        cells: Sequence[PlannedCell],
        pass_on: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pace = Pace(cells)
        self._all = len(cells)
        self._pass_on = pass_on
        self._clock = clock
        self._guard = threading.Lock()
        self._passed = 0.0
        self._passed_at = clock()

    def tell(self, stage: str, whose: str, state: str) -> None:
        """A stage of a subject is now `running`, `done`, `reused` or `failed`."""
        with self._guard:
            self._pace.tell(stage, whose, state)

    def show(self) -> None:
        """Pass the percentage on if it is another one, unless something was a second ago."""
        if self._clock() - self._passed_at >= UPDATE_EVERY_S:
            self._update(self._percent())

    def end(self) -> None:
        self._update(100.0)

    def _update(self, percent: float) -> None:
        if percent != self._passed:
            self._pass_on(percent)
            self._passed, self._passed_at = percent, self._clock()

    def _percent(self) -> float:
        with self._guard:
            left = self._pace.cells - self._pace.ended
        return 100.0 * (self._all - left) / self._all


def create_progress(run_id: str, cells: int) -> Callable[[float], None]:
    """Prefect's progress artifact of a run; what is given takes a percentage."""
    made = create_progress_artifact(
        key="cells-done", progress=0.0, description=f"{run_id}: cells that have ended, of {cells}"
    )
    artifact = cast(UUID, made)  # a coroutine only where a loop runs, and a flow's thread has none

    def update(percent: float) -> None:
        update_progress_artifact(artifact_id=artifact, progress=percent)

    return update


def create_artifacts(result: SweepResult, store: Store) -> None:
    """Leave what became of a run with Prefect, under keys that every run of the flow shares."""
    run, cells = result.run, result.cells
    markdown = summary_markdown(run, cells) + regressions_markdown(result.trends)
    create_markdown_artifact(key="sweep", markdown=markdown, description=shlex.join(run.command))
    create_table_artifact(key="cells", table=summary_rows(cells), description=run.run_id)
    create_link_artifact(key="report", link=store.link(report_name(run.run_id)), description=run.run_id)
    create_link_artifact(
        key="files",
        link=store.link(f"{run_folder(run.run_id)}/files"),
        description=f"{run.run_id}: programs, dumps, traces",
    )
