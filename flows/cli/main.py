"""The command line. Heavy libraries are imported only after the request has been parsed and checked."""

import gc
import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from qnnsweep.flows.cli.atlas import EXITS as ATLAS_EXITS
from qnnsweep.flows.cli.atlas import atlas
from qnnsweep.flows.cli.bisect import EXITS as BISECT_EXITS
from qnnsweep.flows.cli.bisect import bisect
from qnnsweep.flows.cli.cache import app as cache
from qnnsweep.flows.cli.completion import complete_run
from qnnsweep.flows.cli.diff import EXITS as DIFF_EXITS
from qnnsweep.flows.cli.diff import diff
from qnnsweep.flows.cli.ending import end
from qnnsweep.flows.cli.foreground import has_failed, interruptible, sweep_here, with_progress
from qnnsweep.flows.cli.lists import list_
from qnnsweep.flows.cli.options import (
    EXITS,
    RUN_NAMES,
    Artifacts,
    ArtifactsOfSweep,
    ConfigDirs,
    Debug,
    Json,
    Overrides,
    console,
    exit_on_error,
    print_output,
    store_at,
    usage_line,
    with_artifacts,
)
from qnnsweep.flows.cli.plan import plan
from qnnsweep.flows.cli.qualify import EXITS as QUALIFY_EXITS
from qnnsweep.flows.cli.qualify import qualify
from qnnsweep.flows.cli.repair import EXITS as REPAIR_EXITS
from qnnsweep.flows.cli.repair import repair
from qnnsweep.flows.cli.repro import EXITS as REPRO_EXITS
from qnnsweep.flows.cli.repro import repro
from qnnsweep.flows.cli.tensors import EXITS as TENSORS_EXITS
from qnnsweep.flows.cli.tensors import tensors
from qnnsweep.flows.cli.toolchain import app as toolchain
from qnnsweep.flows.cli.ui import ui
from qnnsweep.flows.exit_codes import DEVICES_UNUSABLE, ENVIRONMENT_UNUSABLE, NOT_ALL_PASSED, PASSED
from qnnsweep.flows.server.settings import configure_prefect
from qnnsweep.tasks.errors import EnvironmentUnusable, RequestError
from qnnsweep.tasks.report.formats.names import Format

if TYPE_CHECKING:
    from qnnsweep.flows.graph import ProgressCallback
    from qnnsweep.flows.runs.results import SweepResult

app = typer.Typer(
    help="Compile PyTorch models for Snapdragon NPUs, execute them and compare them operator by operator.\n" + EXITS,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_WITHOUT_OVERRIDES = ("cache", "diff", "doctor", "list", "recompare", "repro", "report", "tensors", "ui")
"""The commands in which the word `artifacts=PLACE` is not an override, and means the option `--artifacts`."""
_OBJECTS_BETWEEN_COLLECTIONS = 100_000
"""Libraries create many objects that stay. With Python's threshold, collections are a tenth of the time of imports."""
_RUN = typer.Argument(metavar="RUN", help=f"A run: {RUN_NAMES}. By default the latest.", autocompletion=complete_run)

Pool = Annotated[
    str | None,
    typer.Option("--pool", help="Run parts of the sweep on the workers of this Prefect work pool; see docs/scale.md."),
]
Dask = Annotated[
    str | None,
    typer.Option("--dask", metavar="ADDRESS", help="Run parts of the sweep on the workers of this Dask scheduler."),
]


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from importlib import metadata

        versions = (f"{name} {metadata.version(name)}" for name in ("executorch", "torch", "prefect"))
        print(f"qnnsweep {metadata.version('qnnsweep')} ({', '.join(versions)})")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version  # the callback has shown it


@app.command(epilog=EXITS, short_help="Run a sweep. Repeat the command to continue.")
def run(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    pool: Pool = None,
    dask: Dask = None,
    json_: Json = False,
    debug: Debug = False,
    artifacts: ArtifactsOfSweep = None,
) -> None:
    """Run a sweep: every combination of models, schemes and SoCs in the overrides. Repeat the command to continue."""
    folders = [folder.absolute() for folder in config_dir or ()]
    with exit_on_error(debug):
        from qnnsweep.conf.load import load
        from qnnsweep.conf.masking import refuse_secrets

        overrides = with_artifacts(overrides, artifacts)
        plan = load(overrides, config_dirs=config_dir or [])
        configure_prefect()
        if pool or dask:
            refuse_secrets(overrides, plan.masked_names)
            result = _spread(overrides, folders, pool, dask)
        else:
            result = sweep_here(plan, overrides, folders)
        _show(result, as_json=json_)
        raise typer.Exit(NOT_ALL_PASSED if has_failed(plan, result) else _exit_code(result))


app.command(epilog=EXITS, short_help="Show the cells that a run would have, and what they will meet.")(plan)


@app.command(epilog=EXITS, short_help="Show the devices and whether they can be used.")
def devices(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    json_: Json = False,
    debug: Debug = False,
    artifacts: ArtifactsOfSweep = None,
) -> None:
    """Show the properties of every device and whether it can be used. Select devices with device= or farm=."""
    with exit_on_error(debug):
        from qnnsweep.flows.cli.devices import devices_table, survey

        statuses = survey(with_artifacts(overrides, artifacts), config_dir or [])
        print_output({"devices": list(map(asdict, statuses))}, devices_table(statuses), as_json=json_)
        raise typer.Exit(PASSED if all(status.usable for status in statuses) else DEVICES_UNUSABLE)


@app.command(short_help="Show what this machine lacks, and how to install it.")
def doctor(json_: Json = False, debug: Debug = False, artifacts: Artifacts = "artifacts") -> None:
    """Check this machine and show what is missing and how to install it.

    Checks Python, torch, ExecuTorch, QNN and its backends, adb, memory, disk and the login of the Prefect server.
    """
    with exit_on_error(debug):
        from qnnsweep.flows.cli.doctor import checks, checks_table

        results = checks(store_at(artifacts))
        print_output({"checks": list(map(asdict, results))}, checks_table(results), as_json=json_)
        raise typer.Exit(PASSED if all(check.ok or not check.needed for check in results) else ENVIRONMENT_UNUSABLE)


@app.command(short_help="Show a run and write its report again.")
def report(
    run_id: Annotated[str | None, _RUN] = None,
    tsv: Annotated[
        Path | None,
        typer.Option(
            "--tsv", metavar="FOLDER", help="Also write every table of the run to this folder, for spreadsheets."
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    format_: Annotated[
        Format | None,
        typer.Option("--format", help="Print the run for another tool instead: see docs/report.md.", show_choices=True),
    ] = None,
    json_: Json = False,
    debug: Debug = False,
    artifacts: Artifacts = "artifacts",
) -> None:
    """Show the summary of a run and write its report.html again."""
    with exit_on_error(debug):
        from qnnsweep.flows.runs.results import export_tsv, formatted, rerender

        store = store_at(artifacts)
        if format_ is not None:
            sys.stdout.write(formatted(store, run_id, format_))
            return
        result = rerender(store, run_id)
        if tsv is not None:
            export_tsv(store, result.run.run_id, tsv)
        _show(result, as_json=json_)
        if open_:
            import webbrowser

            if not webbrowser.open(result.page.absolute().as_uri()):
                raise EnvironmentUnusable(f"no browser can be started; open {result.page}, or set BROWSER")


app.command(epilog=DIFF_EXITS, short_help="Compare two runs.")(diff)


@app.command(epilog=EXITS, short_help="Run a sweep on a schedule, or on request from Prefect.")
def serve(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    name: Annotated[
        str, typer.Option("--name", help="Prefect names the deployment sweep/NAME, or spread/NAME with --pool.")
    ] = "nightly",
    pool: Pool = None,
    debug: Debug = False,
    artifacts: ArtifactsOfSweep = None,
) -> None:
    """Run the sweep on its schedule (schedule.cron=…) and on request from Prefect's UI.

    Needs a Prefect server. Runs one sweep at a time, until you stop the command. For example: experiment=nightly.
    """
    folders = config_dir or []
    with exit_on_error(debug):
        from qnnsweep.conf.load import load
        from qnnsweep.conf.masking import refuse_secrets

        overrides = with_artifacts(overrides, artifacts)
        plan = load(overrides, config_dirs=folders)
        refuse_secrets(overrides, plan.masked_names)
        if plan.trend.fail:
            problem = "a served sweep has no exit code; set prefect.fail_on=[regressed] instead"
            raise RequestError(problem, key="trend.fail", value="true")
        configure_prefect()
        from qnnsweep.flows.cli import serve
        from qnnsweep.flows.resources import prepare

        if pool is None:
            prepare(plan)
        deployment = serve.deployment(plan, name, overrides, folders, pool)
        serve.ensure_server()
        serve.serve_until_stopped(deployment, plan)


@app.command(epilog=EXITS, short_help="Compare a past run again with other tolerances.")
def recompare(
    overrides: Overrides = None,
    run_: Annotated[
        str | None,
        typer.Option(
            "--run", metavar="RUN", help=f"A run: {RUN_NAMES}. By default the latest.", autocompletion=complete_run
        ),
    ] = None,
    json_: Json = False,
    debug: Debug = False,
    artifacts: Artifacts = "artifacts",
) -> None:
    """Compare a past run again with other tolerances, from its stored captures. Needs no device and compiles nothing.

    For example: tolerance=none, or 'tolerance.operators={8a8w:{snr_db:30}}'.
    """
    with exit_on_error(debug):
        from qnnsweep.conf.recompare import check_changeable

        check_changeable(overrides or [])
        configure_prefect()
        from qnnsweep.flows.recompare import planned, run_recompare
        from qnnsweep.flows.recompare import recompare as flow
        from qnnsweep.flows.resources import prepare
        from qnnsweep.flows.runs.flow_state import returned

        words = overrides or []
        past, plan = planned(store_at(artifacts), run_, words)
        prepare(plan)

        def start(on_progress: "ProgressCallback") -> "SweepResult":
            body = flow.with_body(lambda: run_recompare(past, plan, words, on_progress))
            return returned(body, artifacts, run_, words)

        result = with_progress(plan.cells, start)
        _show(result, as_json=json_)
        raise typer.Exit(_exit_code(result))


app.command(epilog=QUALIFY_EXITS, short_help="Compare a toolchain with the present one.")(qualify)
app.command(epilog=BISECT_EXITS, short_help="Search the change that makes a good cell bad.")(bisect)
app.command(epilog=REPAIR_EXITS, short_help="Search a scheme that reaches a target, and certify it.")(repair)
app.command(epilog=ATLAS_EXITS, short_help="Measure which operators can be used.")(atlas)
app.command(epilog=REPRO_EXITS, short_help="Write a folder that shows an operator's error.")(repro)
app.command("list", short_help="List models, schemes, SoCs, devices, runs or operators.")(list_)
app.command(epilog=TENSORS_EXITS, short_help="Write the tensors of one operator.")(tensors)
app.command(short_help="Serve the reports to browsers of this machine.")(ui)
app.add_typer(cache, name="cache", short_help="Show, check and remove what is stored.")
app.add_typer(toolchain, name="toolchain", short_help="Prepare, list and remove other QNN releases.")


def main() -> NoReturn:
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    end(command_line(sys.argv[1:]))


def command_line(words: list[str]) -> int:
    """Run the command of these words, and return its exit code."""
    if words and words[0] in _WITHOUT_OVERRIDES:
        words = [f"--{word}" if word.startswith("artifacts=") else word for word in words]
    try:
        return app(words, prog_name="qnnsweep", standalone_mode=False) or PASSED
    except typer.TyperException as error:
        is_help = error.message.startswith("Usage: ")  # of a command that needs a further word
        print(error.message if is_help else f"qnnsweep: {usage_line(error)}", file=sys.stderr)
        return error.exit_code


def _spread(overrides: list[str], folders: list[Path], pool: str | None, dask: str | None) -> "SweepResult":
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
    flow = spread.with_body(lambda: run_spread(overrides, folders, pool, dask, log.update))
    with interruptible(screen) as before_end, connect.translated_errors():
        before_end.append(connect.cancel_flow_run)
        return returned(flow, overrides, list(map(str, folders)), pool, dask)


def _show(result: "SweepResult", *, as_json: bool) -> None:
    from qnnsweep.flows.runs.regressions import count, regressions_table
    from qnnsweep.tasks.report.terminal import summary_diagnoses, summary_table

    facts, output = result.run, console()
    copy = f"\n  here {result.page}" if "://" in facts.report else ""
    output.print(summary_table(facts, result.cells))
    if (diagnoses := summary_diagnoses(result.cells)) is not None:
        output.print("", diagnoses, sep="\n")
    if (regressions := regressions_table(result.trends)) is not None:
        output.print(regressions)
    output.print(
        f"{facts.seconds:.0f} s, {facts.toolchain_calls} toolchain calls, {facts.reused} results reused\n"
        f"tables {facts.tables}\nreport {facts.report}{copy}",
        highlight=False,
        soft_wrap=True,
    )
    if as_json:
        summary = {
            "run_id": facts.run_id,
            "cells": len(result.cells),
            "outcomes": dict(sorted(Counter(row["outcome"] for row in result.cells).items())),
            "regressions": count(result.trends),
            "toolchain_calls": facts.toolchain_calls,
            "reused": facts.reused,
            "tables": facts.tables,
            "report": facts.report,
        }
        print(json.dumps(summary))


def _exit_code(result: "SweepResult") -> int:
    outcomes = {row["outcome"] for row in result.cells}
    if outcomes & {"failed", "out_of_tolerance"}:
        return NOT_ALL_PASSED
    return DEVICES_UNUSABLE if "infrastructure" in outcomes else PASSED
