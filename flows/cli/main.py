"""The command line. Nothing heavy is imported before it is clear what is asked and that it can be done."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from flows.cli.cache import app as cache
from flows.cli.options import Artifacts, Debug, Json, console, exit_on_error
from flows.exit_codes import DEVICES_UNUSABLE, ENVIRONMENT_UNUSABLE, INTERRUPTED, NOT_ALL_PASSED, PASSED
from flows.server.settings import configure_prefect
from tasks.errors import RequestError

if TYPE_CHECKING:
    from conf.plan import Plan
    from flows.runs.results import SweepResult
    from tasks.storage.store import Store

_EXITS = """
Exit codes: 0 all cells passed · 1 some cell failed or is out of tolerance · 2 the request is wrong, nothing ran ·
3 this machine lacks something · 4 devices unusable.
"""

app = typer.Typer(
    help="Sweeps of PyTorch models over Snapdragon NPUs: compiled, executed and compared operator by operator.\n"
    + _EXITS,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="OVERRIDE",
        help="Hydra's grammar, sweeps included: model=digits_cnn,efficientnet_lite0 scheme=8a8w soc=SM8650 "
        "experiment=nightly measure.iterations=10",
    ),
]
ConfigDirs = Annotated[
    list[Path] | None,
    typer.Option("--config-dir", help="Folder of your own with model/, scheme/ …; modules in it can be imported."),
]
Pool = Annotated[
    str | None,
    typer.Option("--pool", help="Run its parts on the workers of this Prefect work pool: docs/scale.md."),
]
Dask = Annotated[
    str | None,
    typer.Option("--dask", metavar="ADDRESS", help="Run its parts on the workers of this Dask scheduler instead."),
]


@app.command(epilog=_EXITS)
def run(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    pool: Pool = None,
    dask: Dask = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Run a sweep: every model × scheme × SoC that the overrides name. Ask again and it continues where it was."""
    folders = config_dir or []
    with exit_on_error(debug):
        planned = _plan(overrides, folders)
        if pool or dask:
            result = _spread(overrides or [], folders, pool, dask)
        else:
            result = _sweep(planned, overrides or [], folders)
        _show(result, as_json=json_)
        worse = planned.trend.fail and "regressed" in result.trends["verdict"].tolist()
        raise typer.Exit(NOT_ALL_PASSED if worse else _exit_code(result.cells["outcome"].tolist()))


@app.command(epilog=_EXITS)
def plan(overrides: Overrides = None, config_dir: ConfigDirs = None, json_: Json = False, debug: Debug = False) -> None:
    """Show the cells a run would have, and which are impossible and why. Runs nothing."""
    with exit_on_error(debug):
        from conf.names import AXES

        planned = _plan(overrides, config_dir or [])
        cells = [dict(zip(AXES, cell.names, strict=True)) | {"impossible": cell.impossible} for cell in planned.cells]
        if json_:
            print(json.dumps({"cells": cells}))
        else:
            from flows.cli.tables import plan_table

            console().print(plan_table(cells))


@app.command(epilog=_EXITS)
def devices(
    overrides: Overrides = None, config_dir: ConfigDirs = None, json_: Json = False, debug: Debug = False
) -> None:
    """Ask every device what it is and whether it can be used. Name some with device= or farm=."""
    with exit_on_error(debug):
        from flows.cli.devices import survey
        from flows.cli.tables import devices_table

        statuses = survey(overrides or [], config_dir or [])
        if json_:
            print(json.dumps({"devices": [status.as_dict() for status in statuses]}))
        else:
            console().print(devices_table(statuses))
        raise typer.Exit(PASSED if all(status.usable for status in statuses) else DEVICES_UNUSABLE)


@app.command()
def doctor(json_: Json = False, debug: Debug = False, artifacts: Artifacts = "artifacts") -> None:
    """Say what this machine has and lacks, and what to do.

    Python, torch, ExecuTorch, QNN and its backends, adb, memory and disk.
    """
    with exit_on_error(debug):
        from flows.cli.doctor import checks
        from flows.cli.tables import checks_table

        found = checks(_store(artifacts))
        if json_:
            print(json.dumps({"checks": [check.as_dict() for check in found]}))
        else:
            console().print(checks_table(found))
        raise typer.Exit(PASSED if all(check.ok or not check.needed for check in found) else ENVIRONMENT_UNUSABLE)


@app.command()
def report(
    run_id: Annotated[str | None, typer.Argument(metavar="RUN", help="A run's id; the latest if not given.")] = None,
    tsv: Annotated[
        Path | None,
        typer.Option("--tsv", metavar="FOLDER", help="Write every table of the run there, for spreadsheets."),
    ] = None,
    json_: Json = False,
    debug: Debug = False,
    artifacts: Artifacts = "artifacts",
) -> None:
    """Show a run's summary and write its report.html anew."""
    with exit_on_error(debug):
        from flows.runs.results import export_tsv, rerender

        store = _store(artifacts)
        result = rerender(store, run_id)
        if tsv is not None:
            export_tsv(store, result.run.run_id, tsv)
        _show(result, as_json=json_)


@app.command(epilog="Exit codes: 0 no regression · 1 a regression · 2 there is no such run.")
def diff(
    run_a: Annotated[str, typer.Argument(metavar="RUN_A", help="A run's id, its beginning, `latest` or `previous`.")],
    run_b: Annotated[str, typer.Argument(metavar="RUN_B", help="The run that is held against it.")],
    json_: Json = False,
    debug: Debug = False,
    artifacts: Artifacts = "artifacts",
) -> None:
    """Compare two runs, cell by cell and operator by operator, and say what changed between them."""
    with exit_on_error(debug):
        from flows.runs.diff import diff as difference

        found = difference(_store(artifacts), run_a, run_b)
        if json_:
            print(json.dumps(found.as_dict()))
        else:
            from flows.cli.tables import diff_table

            console().print(diff_table(found))
        raise typer.Exit(NOT_ALL_PASSED if found.regressions else PASSED)


@app.command(epilog=_EXITS)
def serve(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    name: Annotated[str, typer.Option("--name", help="What Prefect calls it: sweep/NAME.")] = "nightly",
    pool: Pool = None,
    debug: Debug = False,
) -> None:
    """Run the sweep whenever its schedule says (schedule.cron=…) and whenever somebody asks in Prefect's UI.

    Needs a Prefect server; runs until it is stopped, one sweep at a time. For example: experiment=nightly.
    """
    folders = config_dir or []
    with exit_on_error(debug):
        plan = _plan(overrides, folders)
        configure_prefect()
        from flows.cli import serve
        from flows.resources import prepare

        if pool is None:
            prepare(plan)
        made = serve.deployment(plan, name, overrides or [], folders, pool)
        serve.ensure_server()
        print(serve.promise(plan, made), file=sys.stderr, flush=True)
        serve.serve_until_stopped(made)


@app.command(epilog=_EXITS)
def recompare(
    overrides: Overrides = None,
    run_: Annotated[str | None, typer.Option("--run", metavar="RUN", help="A run's id; the latest if none.")] = None,
    json_: Json = False,
    debug: Debug = False,
    artifacts: Artifacts = "artifacts",
) -> None:
    """Judge a past run again with other tolerances, from the captures it left. Needs no device and compiles nothing.

    For example: tolerance=none, or 'tolerance.operators={8a8w:{snr_db:30}}'.
    """
    with exit_on_error(debug):
        configure_prefect()
        from flows.cli import progress
        from flows.recompare import planned
        from flows.recompare import recompare as flow
        from flows.resources import prepare
        from flows.server import connect
        from flows.sweep import watcher

        _, plan = planned(_store(artifacts), run_, overrides or [])
        prepare(plan)
        screen = Console(stderr=True)
        with _interruptible(screen), screen.status("starting Prefect …"):
            connect.ensure()
        with _interruptible(screen), progress.show_progress(plan.cells, screen) as display:
            watcher.set(display.update)
            result = flow(artifacts, run_, overrides or [])
        _show(result, as_json=json_)
        raise typer.Exit(_exit_code(result.cells["outcome"].tolist()))


app.add_typer(cache, name="cache")


def main() -> None:
    app(prog_name="qnnsweep")


def _plan(overrides: Sequence[str] | None, folders: Sequence[Path]) -> Plan:
    from conf.load import load

    return load(list(overrides or []), config_dirs=folders)


def _store(artifacts: str) -> Store:
    from conf.check import artifacts_problems
    from tasks.storage.store import Store

    for error in artifacts_problems(artifacts, key="--artifacts"):
        raise error
    return Store.at(artifacts)


def _sweep(plan: Plan, overrides: list[str], folders: list[Path]) -> SweepResult:
    """Run the flow, with its progress on the screen."""
    configure_prefect()
    from flows.cli import progress
    from flows.resources import prepare
    from flows.server import connect
    from flows.sweep import sweep, watcher

    prepare(plan)  # what this machine lacks is said before Prefect starts
    screen = Console(stderr=True)
    with _interruptible(screen), screen.status("starting Prefect …"):
        connect.ensure()
    with _interruptible(screen), progress.show_progress(plan.cells, screen) as display:
        watcher.set(display.update)
        return sweep(overrides, [str(folder.absolute()) for folder in folders])


def _spread(overrides: list[str], folders: list[Path], pool: str | None, dask: str | None) -> SweepResult:
    """Run the flow of many machines. This one only waits: it need not have what the workers have."""
    configure_prefect()
    from flows.cli import progress, serve
    from flows.distribution.spread import spread
    from flows.sweep import watcher

    if pool and dask:
        raise RequestError("--pool, --dask: the shards go to one or to the other; name one of them")
    screen = Console(stderr=True)
    serve.ensure_server()
    with _interruptible(screen):
        watcher.set(progress.ProgressLog((), screen, stages=("shard",)).update)
        return spread(overrides, [str(folder.absolute()) for folder in folders], pool, dask)


def _show(result: SweepResult, *, as_json: bool) -> None:
    from flows.runs.regressions import count, regressions_table
    from tasks.report.page import summary_table

    facts, outcomes = result.run, result.cells["outcome"].value_counts()
    output = console()
    copy = f"\n  here {result.page}" if "://" in facts.report else ""
    output.print(summary_table(facts, result.cells))
    if (worse := regressions_table(result.trends)) is not None:
        output.print(worse)
    output.print(
        f"{facts.seconds:.0f} s, {facts.toolchain_calls} toolchain calls, {facts.reused} results reused\n"
        f"tables {facts.tables}\nreport {facts.report}{copy}",
        highlight=False,
        soft_wrap=True,
    )
    if as_json:
        last: dict[str, Any] = {
            "run_id": facts.run_id,
            "cells": len(result.cells),
            "outcomes": {str(outcome): int(count) for outcome, count in sorted(outcomes.items())},
            "regressions": count(result.trends),
            "toolchain_calls": facts.toolchain_calls,
            "reused": facts.reused,
            "tables": facts.tables,
            "report": facts.report,
        }
        print(json.dumps(last))


def _exit_code(outcomes: Sequence[str]) -> int:
    if {"failed", "out_of_tolerance"} & set(outcomes):
        return NOT_ALL_PASSED
    return DEVICES_UNUSABLE if "infrastructure" in outcomes else PASSED


@contextmanager
def _interruptible(screen: Console) -> Iterator[None]:
    """Ctrl-C ends this process and its children at once: every file is whole at any moment, nothing need be awaited."""

    def end(*_: object) -> None:
        import psutil

        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        screen.show_cursor(True)
        print("\nqnnsweep: interrupted; the same command continues", file=sys.stderr, flush=True)
        os._exit(INTERRUPTED)

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
