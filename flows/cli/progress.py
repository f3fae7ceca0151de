"""A sweep as it runs, for the terminal: a live table on a screen, one line an event anywhere else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from conf.names import CELL_STAGES
from conf.plan import PlannedCell
from flows.graph import subject
from flows.runs.eta import Pace

_MARKS = {"done": ("✓", "green"), "reused": ("↺", "blue"), "failed": ("✗", "bold red")}
_WAITING = ("·", "dim")
_REFRESHES_PER_SECOND = 4
_LINES_AROUND = 6  # title, head, rules and the count below


class Progress:
    """What every stage of every cell is at. Safe to tell from any thread; draws itself anew each time it is asked."""

    def __init__(self, cells: Sequence[PlannedCell]) -> None:
        self._cells = [cell.request for cell in cells if cell.impossible is None]
        self._impossible = len(cells) - len(self._cells)
        self._guard = threading.Lock()
        self._pace = Pace(cells)
        self._states: dict[tuple[str, str], str] = {}
        self._since: dict[tuple[str, str], float] = {}

    def tell(self, stage: str, whose: str, state: str) -> None:
        """A stage of a subject is now `running`, `done`, `reused` or `failed`."""
        with self._guard:
            self._pace.tell(stage, whose, state)
            self._states[stage, whose] = state
            self._since[stage, whose] = time.monotonic()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._guard:
            states, since, so_far = dict(self._states), dict(self._since), self._pace.words()
        lines = []
        for request in self._cells:
            keys = [(stage, subject(stage, request)) for stage in CELL_STAGES]
            marks = [states.get(key) for key in keys]
            ended = "failed" in marks or marks[-1] in ("done", "reused")
            lines.append((ended, subject("compare", request), [_mark(states, since, key) for key in keys]))
        shown = max(3, (options.height or console.height) - _LINES_AROUND)
        # What still runs is worth the room; ended cells go first when it is short.
        waiting = [line for line in lines if not line[0]]
        visible = lines if len(lines) <= shown else (waiting or lines)[:shown]
        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("cell")
        for stage in CELL_STAGES:
            table.add_column(stage, justify="center", min_width=len(stage))
        for _, name, cells in visible:
            table.add_row(Text(name), *cells)
        yield table
        counts = [so_far]
        counts += [f"{self._impossible} impossible"] if self._impossible else []
        counts += [f"{len(lines) - len(visible)} not shown"] if len(visible) < len(lines) else []
        yield Text(", ".join(counts), "dim")


def _mark(states: dict[tuple[str, str], str], since: dict[tuple[str, str], float], key: tuple[str, str]) -> Text:
    state = states.get(key)
    if state == "running":
        return Text(f"{time.monotonic() - since[key]:.0f} s", "bold cyan")
    return Text(*_MARKS.get(state or "", _WAITING))


class Lines:
    """The same for a log file: what ended, and how long it took."""

    def __init__(self, cells: Sequence[PlannedCell], console: Console, stages: Sequence[str] = CELL_STAGES) -> None:
        self._console = console
        self._stages = stages
        self._pace = Pace(cells)
        self._guard = threading.Lock()
        self._since: dict[tuple[str, str], float] = {}

    def tell(self, stage: str, whose: str, state: str) -> None:
        if stage not in self._stages:  # `measure` is its three steps
            return
        with self._guard:
            ended = self._pace.ended
            self._pace.tell(stage, whose, state)
            if state == "running":
                self._since[stage, whose] = time.monotonic()
                return
            began = self._since.get((stage, whose))
            took = f"  {time.monotonic() - began:.1f} s" if began is not None and state != "reused" else ""
            so_far = f"  ({self._pace.words()})" if self._pace.ended > ended else ""
            line = f"{stage:<8} {whose}  {state}{took}{so_far}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def shown(cells: Sequence[PlannedCell], console: Console) -> Iterator[Progress | Lines]:
    """Something to tell a sweep's progress to, on `console`."""
    if not console.is_terminal:
        yield Lines(cells, console)
        return
    progress = Progress(cells)
    with Live(progress, console=console, refresh_per_second=_REFRESHES_PER_SECOND, transient=True):
        yield progress
