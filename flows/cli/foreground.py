"""Flows that run on this machine while the command line shows their progress. What takes seconds, starts concurrently.

Heavy libraries are imported late: first the fork server of the workers starts, then Prefect's server, and both start
while this process imports the flow.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console

from qnnsweep.conf.errors import INTERRUPTED
from qnnsweep.flows.cli.command import Words
from qnnsweep.tasks.report.format import plural

if TYPE_CHECKING:
    from qnnsweep.conf.plan import Plan, PlannedCell
    from qnnsweep.flows.cells.graph import ProgressCallback
    from qnnsweep.flows.forecasts.costs import ExpectedSeconds
    from qnnsweep.flows.runs.results import SweepResult
    from qnnsweep.flows.server.temporary import TemporaryServer

T = TypeVar("T")


def sweep_here(plan: "Plan", words: Words, overrides: Sequence[str] | None = None) -> "SweepResult":
    """Run the flow `sweep` for a plan. Prefect gets the overrides with masks: by default those of the command line."""
    from qnnsweep.conf.masking import mask_secrets

    folders, masked = words.folders, mask_secrets(overrides or words.overrides, plan.masked_names)

    def start(on_progress: "ProgressCallback") -> "SweepResult":
        from qnnsweep.flows.runs.flow_state import returned
        from qnnsweep.flows.session import command
        from qnnsweep.flows.sweep import run_sweep, sweep

        flow = sweep.with_body(lambda: run_sweep(plan, command(masked, folders), on_progress))
        return returned(flow, masked, list(map(str, folders)))

    return run_on_this_machine(plan, start)


def run_on_this_machine(plan: "Plan", flow: Callable[["ProgressCallback"], T]) -> T:
    """Start what the plan needs, then call the flow, and show the progress of the plan's cells."""
    impossible = sum(cell.impossible is not None for cell in plan.cells)
    to_run = plural(len(plan.cells) - impossible, "cell")
    print(f"{to_run} to run, {impossible} impossible", file=sys.stderr, flush=True)
    from qnnsweep.flows.cells.toolchains import start_servers

    start_servers(plan)
    from qnnsweep.flows.cells.resources import prepare
    from qnnsweep.flows.forecasts.costs import forecast

    prepare(plan)  # report what this machine lacks before Prefect starts
    expected = forecast(plan)
    return with_progress(plan.cells, flow, expected and expected.expected)


def with_progress(
    cells: Sequence["PlannedCell"], flow: Callable[["ProgressCallback"], T], expected: "ExpectedSeconds | None" = None
) -> T:
    """Start Prefect, then call the flow, and show the progress of its cells. `expected`: what they will take."""
    screen = Console(stderr=True)
    with interruptible(screen) as before_end:
        with screen.status("starting Prefect …"):
            server = _start_server(before_end)
            from qnnsweep.flows.cli import progress
            from qnnsweep.flows.server import connect

            connect.ensure(server)
            if server is None:
                before_end.append(connect.cancel_flow_run)
        with (
            progress.show_progress(cells, screen, expected) as display,
            connect.translated_errors(),
            connect.without_heartbeats(),
        ):
            return flow(display.update)


def has_failed(plan: "Plan", result: "SweepResult") -> bool:
    """Return whether a regression makes the exit code 1; see the key `trend.fail`."""
    return plan.trend.fail and bool(result.counts.regressed)


def _start_server(before_end: list[Callable[[], None]]) -> "TemporaryServer | None":
    """Start Prefect's server if this process needs one: if possible, before Prefect is imported, which takes a second.

    `before_end`: see `interruptible`.
    """
    from qnnsweep.flows.server import temporary

    if temporary.is_surely_needed():
        server = temporary.start()
    else:
        from qnnsweep.flows.server import connect

        server = connect.start()
    if server is not None:
        before_end.append(server.expect_end)
    return server


@contextmanager
def interruptible(screen: Console) -> Iterator[list[Callable[[], None]]]:
    """Let Ctrl-C end this process and its children at once. No file is damaged, because all are written atomically.

    Yields a list, to which the caller adds functions to call before the children end.
    """
    before_end: list[Callable[[], None]] = []

    def end(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for function in before_end:
            function()
        # The signal may have come while this thread was inside stderr's buffer, which cannot be entered twice.
        with suppress(RuntimeError):
            screen.show_cursor(True)
        os.write(sys.stderr.fileno(), b"\nqnnsweep: interrupted; run the same command again to continue\n")
        # The threads that lose their workers and their server must not print anything after this line.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        import psutil

        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        os._exit(INTERRUPTED)

    before = signal.signal(signal.SIGINT, end)
    try:
        yield before_end
    finally:
        signal.signal(signal.SIGINT, before)
