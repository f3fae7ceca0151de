"""The progress of a sweep on the terminal: a live table on a screen, or one line per event in a log file."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from conf.names import CELL_STAGES
from conf.plan import PlannedCell
from flows.graph import work_label
from flows.runs.eta import EtaEstimate
from tasks.report.format import plain_table

_MARKS = {"waiting": ("·", "dim"), "done": ("✓", "green"), "reused": ("↺", "blue"), "failed": ("✗", "bold red")}
_REFRESHES_PER_SECOND = 4
_LINES_AROUND = 6  # the title, the head, the rules and the counts below the table


class ProgressTable:
    """The state of every stage of every cell, as a live table. `update` is thread-safe."""

    def __init__(self, cells: Sequence[PlannedCell]) -> None:
        self._cells = [cell.request for cell in cells if cell.impossible is None]
        self._impossible = len(cells) - len(self._cells)
        self._lock = threading.Lock()
        self._eta = EtaEstimate(cells)
        self._states: dict[tuple[str, str], tuple[str, float]] = {}
        """Maps a stage and the label of its work to the state of this work and the time at which the state began."""

    def update(self, stage: str, label: str, state: str) -> None:
        """Record the new state of the stage's work with this label: `running`, `done`, `reused` or `failed`."""
        with self._lock:
            self._eta.update(stage, label, state)
            self._states[stage, label] = (state, time.monotonic())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            states, summary = dict(self._states), self._eta.summary()
        lines = []
        for request in self._cells:
            stages = [states.get((stage, work_label(stage, request)), ("waiting", 0.0)) for stage in CELL_STAGES]
            ended = any(state == "failed" for state, _ in stages) or stages[-1][0] in ("done", "reused")
            lines.append((ended, work_label("compare", request), [_mark(*stage) for stage in stages]))
        room = max(3, (options.height or console.height) - _LINES_AROUND)
        # If the screen is too small for all cells, those that have ended are left out.
        unfinished = [line for line in lines if not line[0]]
        visible = lines if len(lines) <= room else (unfinished or lines)[:room]
        table = plain_table("cell")
        for stage in CELL_STAGES:
            table.add_column(stage, justify="center", min_width=len(stage))
        for _, name, cells in visible:
            table.add_row(Text(name), *cells)
        yield table
        counts = [summary]
        counts += [f"{self._impossible} impossible"] if self._impossible else []
        counts += [f"{len(lines) - len(visible)} not shown"] if len(visible) < len(lines) else []
        yield Text(", ".join(counts), "dim")


def _mark(state: str, since: float) -> Text:
    return Text(f"{time.monotonic() - since:.0f} s", "bold cyan") if state == "running" else Text(*_MARKS[state])


class ProgressLog:
    """The progress of a sweep as lines of a log file: one line per stage that has ended, with its duration."""

    def __init__(self, cells: Sequence[PlannedCell], console: Console, stages: Sequence[str] = CELL_STAGES) -> None:
        self._console = console
        self._stages = stages
        self._eta = EtaEstimate(cells)
        self._lock = threading.Lock()
        self._since: dict[tuple[str, str], float] = {}

    def update(self, stage: str, label: str, state: str) -> None:
        """Print a line if the stage's work with this label has ended with the state `done`, `reused` or `failed`."""
        if stage not in self._stages:  # the three steps of `measure` are reported instead of `measure`
            return
        with self._lock:
            ended = self._eta.ended
            self._eta.update(stage, label, state)
            if state == "running":
                self._since[stage, label] = time.monotonic()
                return
            start = self._since.get((stage, label))
            duration = f"  {time.monotonic() - start:.1f} s" if start is not None and state != "reused" else ""
            summary = f"  ({self._eta.summary()})" if self._eta.ended > ended else ""
            line = f"{stage:<8} {label}  {state}{duration}{summary}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def show_progress(cells: Sequence[PlannedCell], console: Console) -> Iterator[ProgressTable | ProgressLog]:
    """Show the progress of these cells on `console`. The caller passes every state to the yielded object's `update`."""
    if not console.is_terminal:
        yield ProgressLog(cells, console)
        return
    table = ProgressTable(cells)
    with Live(table, console=console, refresh_per_second=_REFRESHES_PER_SECOND, transient=True):
        yield table
