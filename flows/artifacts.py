"""What the Prefect UI shows of a run: how far it is, its cells as a table and as Markdown, where its files are."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast
from uuid import UUID

import pandas
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from conf.plan import PlannedCell
from flows.cells import STAGES, subject
from tasks.report import RunFacts, summary_markdown, summary_rows

UPDATE_EVERY_S = 1.0


class CellsDone:
    """A run's progress: how many of its cells have ended. Told from any thread, shown by the flow's own."""

    def __init__(self, cells: Sequence[PlannedCell], run_id: str) -> None:
        self._cells = [
            [(stage, subject(stage, cell.request)) for stage in STAGES] for cell in cells if cell.impossible is None
        ]
        self._all = len(cells)
        self._states: dict[tuple[str, str], str] = {}
        self._guard = threading.Lock()
        self._shown = self._percent()
        self._shown_at = time.monotonic()
        made = create_progress_artifact(
            key="cells-done", progress=self._shown, description=f"{run_id}: cells that have ended, of {self._all}"
        )
        self._artifact = cast(UUID, made)  # a coroutine only where a loop runs, and a flow's thread has none

    def tell(self, stage: str, whose: str, state: str) -> None:
        """A stage of a subject is now `running`, `done`, `reused` or `failed`."""
        with self._guard:
            self._states[stage, whose] = state

    def show(self) -> None:
        """Tell Prefect, if there is something new and the last time was a second ago."""
        if time.monotonic() - self._shown_at >= UPDATE_EVERY_S:
            self._update(self._percent())

    def end(self) -> None:
        self._update(100.0)

    def _update(self, percent: float) -> None:
        self._shown_at = time.monotonic()
        if percent != self._shown:
            update_progress_artifact(artifact_id=self._artifact, progress=percent)
            self._shown = percent

    def _percent(self) -> float:
        with self._guard:
            ends = [[self._states.get(key) for key in cell] for cell in self._cells]
        ended = sum("failed" in states or states[-1] == "done" for states in ends) + self._all - len(self._cells)
        return 100.0 * ended / self._all if self._all else 100.0


def create_artifacts(run: RunFacts, cells: pandas.DataFrame) -> None:
    """Leave what became of a run with Prefect, under keys that every run of the flow shares."""
    report = Path(run.report).absolute()
    create_markdown_artifact(key="sweep", markdown=summary_markdown(run, cells), description=shlex.join(run.command))
    create_table_artifact(key="cells", table=summary_rows(cells), description=run.run_id)
    create_link_artifact(key="report", link=report.as_uri(), description=run.run_id)
    create_link_artifact(
        key="files", link=report.with_name("files").as_uri(), description=f"{run.run_id}: programs, dumps, traces"
    )
