"""The commands `run`, `serve`, `recompare` and `report`. Heavy libraries are imported after the request is checked."""

import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType

from qnnsweep.conf.errors import DEVICES_UNUSABLE, ENVIRONMENT_UNUSABLE, NOT_ALL_PASSED, PASSED
from qnnsweep.flows.cli.command import Output, Words
from qnnsweep.flows.cli.foreground import has_failed, interruptible, sweep_here, with_progress
from qnnsweep.flows.cli.options import LatestRun, OptionalRun, Pool
from qnnsweep.flows.server.settings import configure_prefect
from qnnsweep.tasks.errors import DeadlinePassed, DeviceError, EnvironmentUnusable, RequestError
from qnnsweep.tasks.report.formats.names import Format

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from qnnsweep.flows.cells.graph import ProgressCallback
    from qnnsweep.flows.runs.results import SweepResult
    from qnnsweep.tasks.records.tables import Row
    from qnnsweep.tasks.storage.store import Store

Dask = Annotated[
    str | None,
    typer.Option("--dask", metavar="ADDRESS", help="Run parts of the sweep on the workers of this Dask scheduler."),
]


def run(words: Words, pool: Pool = None, dask: Dask = None) -> Output:
    """Run a sweep: every combination of models, schemes and SoCs in the overrides. Repeat the command to continue."""
    from qnnsweep.conf.load import load, load_search
    from qnnsweep.conf.masking import refuse_secrets
    from qnnsweep.tasks.storage.store import Store

    if not pool and not dask and (request := load_search(words.overrides, config_dirs=words.config_dirs)):
        from qnnsweep.flows.cli.search import search_here

        return search_here(request, words)
    plan = load(words.overrides, config_dirs=words.config_dirs)
    configure_prefect()
    if pool or dask:
        refuse_secrets(words.overrides, plan.masked_names)
        result = _spread(words, pool, dask)
    else:
        result = sweep_here(plan, words)
    store = Store.at(plan.artifacts, plan.cache_folder, plan.object_store) if words.as_json else None
    return _output(result, NOT_ALL_PASSED if has_failed(plan, result) else _exit_code(result), store)


def _spread(words: Words, pool: str | None, dask: str | None) -> "SweepResult":
    """Run the flow `spread`. This machine only waits for the workers, so it need not meet their requirements."""
    from qnnsweep.flows.cli import progress, serve
    from qnnsweep.flows.distribution.spread import run_spread, spread
    from qnnsweep.flows.runs.flow_state import returned
    from qnnsweep.flows.server import connect

    if pool and dask:
        raise RequestError("--pool, --dask: the sweep runs either on a work pool or on Dask; set only one of them")
    screen = Console(stderr=True)
    serve.ensure_server()
    log = progress.ProgressLog((), screen, stages=("shard",))
    flow = spread.with_body(lambda: run_spread(words.overrides, words.folders, pool, dask, log.update))
    with interruptible(screen) as before_end, connect.translated_errors():
        before_end.append(connect.cancel_flow_run)
        return returned(flow, words.overrides, list(map(str, words.folders)), pool, dask)


def serve(
    words: Words,
    name: Annotated[
        str, typer.Option("--name", help="Prefect names the deployment sweep/NAME, or spread/NAME with --pool.")
    ] = "nightly",
    pool: Pool = None,
) -> None:
    """Run the sweep on its schedule (schedule.cron=…) and on request from Prefect's UI.

    Needs a Prefect server. Runs one sweep at a time, until you stop the command. For example: experiment=nightly.
    """
    from qnnsweep.conf.load import load
    from qnnsweep.conf.masking import refuse_secrets

    plan = load(words.overrides, config_dirs=words.config_dirs)
    refuse_secrets(words.overrides, plan.masked_names)
    if plan.trend.fail:
        problem = "a served sweep has no exit code; set prefect.fail_on=[regressed] instead"
        raise RequestError(problem, key="trend.fail", value="true")
    configure_prefect()
    from qnnsweep.flows.cells.resources import prepare
    from qnnsweep.flows.cli import serve

    if pool is None:
        prepare(plan)
    deployment = serve.deployment(plan, name, words.overrides, words.config_dirs, pool)
    serve.ensure_server()
    serve.serve_until_stopped(deployment, plan)


def recompare(words: Words, run_: OptionalRun = None) -> Output:
    """Compare a past run again with other tolerances, from its stored captures. Needs no device and compiles nothing.

    The names of a metric or a backend of your own, and its --config-dir, are never read from the run: give them again.
    For example: tolerance=none, or 'tolerance.operators={8a8w:{snr_db:30}}'.
    """
    from qnnsweep.conf.recompare import check_changeable

    overrides, folders = words.overrides, words.folders
    check_changeable(overrides)
    configure_prefect()
    from qnnsweep.flows.cells.resources import prepare
    from qnnsweep.flows.recompare import planned, run_recompare
    from qnnsweep.flows.recompare import recompare as flow
    from qnnsweep.flows.runs.flow_state import returned

    past, plan = planned(words.store, run_, overrides, folders)
    prepare(plan)

    def start(on_progress: "ProgressCallback") -> "SweepResult":
        body = flow.with_body(lambda: run_recompare(past, plan, overrides, folders, on_progress))
        return returned(body, words.artifacts, run_, overrides, list(map(str, folders)))

    result = with_progress(plan.cells, start)
    return _output(result, _exit_code(result), words.store if words.as_json else None)


def report(
    words: Words,
    run_id: LatestRun = None,
    tsv: Annotated[
        Path | None,
        typer.Option(
            "--tsv", metavar="FOLDER", help="Also write every table of the run to this folder, for spreadsheets."
        ),
    ] = None,
    site: Annotated[
        Path | None,
        typer.Option(
            "--site", metavar="FOLDER", help="Write the history of all runs as web pages to this folder instead."
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    format_: Annotated[
        Format | None,
        typer.Option("--format", help="Print the run for another tool instead: see docs/report.md.", show_choices=True),
    ] = None,
) -> Output | None:
    """Show the summary of a run and write its report.html again."""
    from qnnsweep.flows.runs.results import export_tsv, formatted, rerender

    if site is not None:
        from qnnsweep.flows.runs.site import Site

        pages = Site(words.store)
        pages.write(site)
        notes = "".join(f"left out: {problem}\n" for problem in sorted(pages.problems)) or None
        return Output(
            contents={"site": str(site)}, schema="report --site", parts=[f"site {site / 'index.html'}"], notes=notes
        )
    if format_ is not None:
        sys.stdout.write(formatted(words.store, run_id, format_))
        return None
    result = rerender(words.store, run_id)
    if tsv is not None:
        export_tsv(words.store, result.run.run_id, tsv)
    return replace(
        _output(result, PASSED, words.store if words.as_json else None),
        last=partial(_open, result.page) if open_ else None,
    )


def _open(page: Path) -> None:
    """Open a page in the user's browser. Raises EnvironmentUnusable."""
    import webbrowser

    if not webbrowser.open(page.absolute().as_uri()):
        raise EnvironmentUnusable(f"no browser can be started; open {page}, or set BROWSER")


def _output(result: "SweepResult", exit_code: int, store: "Store | None") -> Output:
    """Return what a run prints. `store`: that of the run, if the results of the cells are printed as JSON."""
    from qnnsweep.flows.runs.regressions import regressions_table
    from qnnsweep.tasks.report.format import with_places
    from qnnsweep.tasks.report.terminal import summary_diagnoses, summary_samples, summary_table

    facts, counts = result.run, result.counts
    cells = with_places(result.cells, facts)
    copy = f"\n  here {result.page}" if "://" in facts.report else ""
    diagnoses, regressions = summary_diagnoses(cells), regressions_table(counts)
    parts: list[RenderableType] = [summary_table(facts, cells, result.trends)]
    parts += [] if diagnoses is None else ["", diagnoses]
    parts += [] if regressions is None else [regressions]
    parts += summary_samples(cells)
    parts.append(
        f"{facts.seconds:.0f} s, {facts.toolchain_calls} toolchain calls, {facts.reused} results reused\n"
        f"tables {facts.tables}\nreport {facts.report}{copy}"
    )
    summary = {
        "run_id": facts.run_id,
        "cells": counts.cells,
        "outcomes": dict(sorted(counts.outcomes.items())),
        "regressions": len(counts.regressed),
        "worse_since_an_earlier_run": len(counts.still_bad),
        "toolchain_calls": facts.toolchain_calls,
        "reused": facts.reused,
        "tables": facts.tables,
        "report": facts.report,
        "results": [] if store is None else list(_cells(facts.run_id, cells, store)),
    }
    return Output(contents=summary, schema="run", parts=parts, with_json=True, exit_code=exit_code)


def _cells(run_id: str, cells: "Sequence[Row]", store: "Store") -> "Iterator[dict[str, Any]]":
    """Yield the object of each cell for `--json`."""
    from qnnsweep.conf.names import AXES
    from qnnsweep.flows.runs.culprit import culprit
    from qnnsweep.tasks.report.format import compared
    from qnnsweep.tasks.storage import tables

    operators, budget = (tables.rows(store, table, run_id) for table in ("operators", "budget"))
    for cell in cells:
        found = culprit(cell, operators, budget)
        yield {
            **{axis: cell[axis] for axis in AXES},
            "outcome": cell["outcome"],
            "final_snr_db": cell["final_snr_db"],
            "worst_output": cell["worst_final_output"],
            "worst_sample": cell["worst_sample_name"],
            "sentence": cell["diagnosis"] if compared(cell) else None,
            "error": cell["reason"] or cell["error"],
            "culprit": found and asdict(found),
        }


def _exit_code(result: "SweepResult") -> int:
    outcomes = {row["outcome"] for row in result.cells}
    if outcomes & {"failed", "out_of_tolerance"}:
        return NOT_ALL_PASSED
    errors = {row["error_type"] for row in result.cells if row["outcome"] == "infrastructure"}
    if errors & {DeviceError.__name__, DeadlinePassed.__name__}:
        return DEVICES_UNUSABLE
    return ENVIRONMENT_UNUSABLE if errors else PASSED
