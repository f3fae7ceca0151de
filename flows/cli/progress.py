"""The progress of a sweep on the terminal: a live table on a screen, or one line per event in a log file."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from qnnsweep.conf.names import SHOWN_STAGES
from qnnsweep.conf.plan import PlannedCell
from qnnsweep.flows.cells.cases import CASES
from qnnsweep.flows.cells.graph import REASON
from qnnsweep.flows.forecasts.costs import EtaEstimate, ExpectedSeconds, stages_of, work_label

_MARKS = {
    "waiting": ("·", "dim"),
    "queued": ("…", "yellow"),
    "running": ("▶", "bold cyan"),
    "done": ("✓", "green"),
    "reused": ("↺", "blue"),
    "failed": ("✗", "bold red"),
}
_ORDER = ("running", "queued", "waiting", "failed", "done")
"""The states of cells. If the screen is too small, the cells of the first states are shown."""
_STYLES = {"running": "bold", "failed": "red", "waiting": "dim", "queued": "dim"}
_REFRESHES_PER_SECOND = 4
_LINES_AROUND = 4  # the head, the rule, the counts below the table, and a line for the cursor
_BETWEEN = "  "
_LEAST_NAME = 16
_NOW_WIDTH = 16  # "quantize  9999 s"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """A cell. `stages`: per stage, its state and for how many seconds it has had this state."""

    name: str
    stages: Mapping[str, tuple[str, float]]

    @property
    def state(self) -> str:
        """The state of the cell, a member of `_ORDER`."""
        states = [state for state, _ in self.stages.values()]
        if states[-1] in ("done", "reused"):
            return "done"
        return next((state for state in ("failed", "running", "queued") if state in states), "waiting")


class ProgressTable:
    """The state of every stage of every cell, as a live table with one line per cell. `update` is thread-safe."""

    def __init__(
        self,
        cells: Sequence[PlannedCell],
        expected: ExpectedSeconds | None = None,
        clock: Callable[[], float] = time.monotonic,
        console: Console | None = None,
    ) -> None:
        """`expected`: see `EtaEstimate`. `console`: where the reasons of failures are printed, above the table."""
        self._clock = clock
        self._console = console
        self._cells = [cell.request for cell in cells if cell.impossible is None]
        self._impossible = len(cells) - len(self._cells)
        self._lock = threading.Lock()
        self._eta = EtaEstimate(cells, expected, clock)
        self._states: dict[tuple[str, str], tuple[str, float]] = {}
        """Maps a stage and the label of its work to the state of this work and the time at which the state began."""
        self._cases = ""

    def update(self, stage: str, label: str, state: str) -> None:
        """Record the new state of the stage's work with this label; see `EtaEstimate.update`."""
        if stage == REASON:
            if self._console is not None:
                _print_reason(self._console, label)
            return
        with self._lock:
            if stage == CASES:
                self._cases = label
                return
            self._eta.update(stage, label, state)
            self._states[stage, label] = (state, self._clock())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            now, summary = self._clock(), self._eta.summary()
            states = {work: (state, now - since) for work, (state, since) in self._states.items()}
        lines: list[_Line] = []
        for request in self._cells:
            work = {stage: (stage, work_label(stage, request)) for stage in stages_of(request)}
            stages = {stage: states.get(label, ("waiting", 0.0)) for stage, label in work.items()}
            lines.append(_Line(name=work_label("compare", request), stages=stages))
        room = max(3, (options.height or console.height) - _LINES_AROUND)
        visible = lines if len(lines) <= room else sorted(lines, key=lambda line: _ORDER.index(line.state))[:room]
        yield from _table(visible, options.max_width)
        in_state = {state: sum(line.state == state for line in lines) for state in ("running", "queued", "waiting")}
        counts = [summary, *(f"{count} {state}" for state, count in in_state.items() if count)]
        counts += [self._cases] if self._cases else []
        counts += [f"{self._impossible} impossible"] if self._impossible else []
        counts += [f"{len(lines) - len(visible)} not shown"] if len(visible) < len(lines) else []
        yield Text(f" {', '.join(counts)}", "dim", no_wrap=True, overflow="ellipsis")


def _table(lines: Sequence[_Line], width: int) -> Iterator[Text]:
    """Yield the head, a rule, and one line per cell. A narrow table has one character per stage."""
    shown = [stage for stage in SHOWN_STAGES if any(stage in line.stages for line in lines)]
    head = "".join(f"{_BETWEEN}{stage}" for stage in shown)
    longest = max((len(line.name) for line in lines), default=0)
    is_narrow = 2 + max(longest, _LEAST_NAME) + len(head) > width
    if is_narrow:
        head = f"{_BETWEEN}{'stages':<{len(shown)}}{_BETWEEN}{'now':<{_NOW_WIDTH}}"
    name_width = max(_LEAST_NAME, min(longest, width - 2 - len(head)))
    yield Text(f" {'cell':<{name_width}}{head}".rstrip(), "bold", no_wrap=True, overflow="crop")
    yield Text(f" {'─' * (name_width + len(head))}", no_wrap=True, overflow="crop")
    for line in lines:
        text = Text(f" {_shortened(line.name, name_width):<{name_width}}", no_wrap=True, overflow="crop")
        text.stylize(_STYLES.get(line.state, ""))
        yield text.append_text(_marks(line, len(shown)) if is_narrow else _columns(line))


def _columns(line: _Line) -> Text:
    """Return a cell's stages in a column each. The column of a running stage has its seconds."""
    columns = Text()
    for stage, (state, seconds) in line.stages.items():
        mark, style = _MARKS[state]
        mark = f"{seconds:.0f} s" if state == "running" else mark
        columns.append(f"{_BETWEEN}{mark:^{len(stage)}}", style)
    return columns


def _marks(line: _Line, width: int) -> Text:
    """Return a character per stage, then the running stage with its seconds, or the stage that waits for a core.

    `width`: the number of stages that any cell has.
    """
    marks = Text(_BETWEEN)
    for state, _ in line.stages.values():
        marks.append(*_MARKS[state])
    marks.pad_right(width - len(line.stages))
    for stage, (state, seconds) in line.stages.items():
        if state == line.state in ("running", "queued", "failed"):
            now = f"{seconds:.0f} s" if state == "running" else state
            return marks.append(f"{_BETWEEN}{stage} {now}", _MARKS[state][1])
    return marks


def _shortened(name: str, width: int) -> str:
    """Return the name, without characters of its middle if it is too long: its end distinguishes the cells best."""
    if len(name) <= width:
        return name
    end = (width - 1) * 2 // 3
    return f"{name[: width - 1 - end]}…{name[-end:]}"


class ProgressLog:
    """The progress of a sweep as lines of a log file: one line per stage that has ended, with its duration."""

    def __init__(
        self,
        cells: Sequence[PlannedCell],
        console: Console,
        expected: ExpectedSeconds | None = None,
        stages: Sequence[str] = SHOWN_STAGES,
    ) -> None:
        self._console = console
        self._stages = stages
        self._eta = EtaEstimate(cells, expected)
        self._lock = threading.Lock()
        self._since: dict[tuple[str, str], float] = {}

    def update(self, stage: str, label: str, state: str) -> None:
        """Print a line if the stage's work with this label has ended with the state `done`, `reused` or `failed`."""
        if stage == REASON:
            _print_reason(self._console, label)
        if stage == CASES:
            self._console.print(label, markup=False, highlight=False, soft_wrap=True)
        if stage not in self._stages:  # the three steps of `measure` are reported instead of `measure`
            return
        with self._lock:
            ended = self._eta.ended
            self._eta.update(stage, label, state)
            if state in ("queued", "running"):
                self._since[stage, label] = time.monotonic()
                return
            start = self._since.get((stage, label))
            duration = f"  {time.monotonic() - start:.1f} s" if start is not None and state != "reused" else ""
            summary = f"  ({self._eta.summary()})" if self._eta.ended > ended else ""
            line = f"{stage:<8} {label}  {state}{duration}{summary}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _print_reason(console: Console, label: str) -> None:
    """Print the first line of a failure, which says what to do."""
    mark, style = _MARKS["failed"]
    console.print(Text(f"{mark} {label.splitlines()[0]}", style), soft_wrap=True)


@contextmanager
def show_progress(
    cells: Sequence[PlannedCell], console: Console, expected: ExpectedSeconds | None = None
) -> Iterator[ProgressTable | ProgressLog]:
    """Show the progress of these cells on `console`. The caller passes every state to the yielded object's `update`."""
    if not console.is_terminal:
        yield ProgressLog(cells, console, expected)
        return
    table = ProgressTable(cells, expected, console=console)
    with Live(table, console=console, refresh_per_second=_REFRESHES_PER_SECOND, transient=True):
        yield table
