"""The parts that all commands share: options, output and the handling of errors."""

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from qnnsweep.flows.cli.completion import complete_override
from qnnsweep.flows.exit_codes import DEVICES_UNUSABLE, ENVIRONMENT_UNUSABLE, NOT_ALL_PASSED, REQUEST_WRONG
from qnnsweep.tasks.errors import DeviceError, EnvironmentUnusable, QnnsweepError, RequestError

if TYPE_CHECKING:
    from qnnsweep.tasks.storage.store import Store

_WIDTH_OF_A_FILE = 160

EXITS = """
Exit codes: 0 all cells passed · 1 some cell failed or is out of tolerance · 2 the request is wrong, nothing ran ·
3 this machine lacks something · 4 devices unusable.
"""

RUN_NAMES = "an id, the beginning of an id, `latest` or `previous`"

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="OVERRIDE",
        autocompletion=complete_override,
        help="Overrides in Hydra's grammar, including sweeps: model=digits_cnn,efficientnet_lite0 scheme=8a8w "
        "soc=SM8650 experiment=nightly measure.iterations=10",
    ),
]
ConfigDirs = Annotated[
    list[Path] | None,
    typer.Option("--config-dir", help="A folder with model/, scheme/ … of your own; its modules can be imported."),
]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
_ARTIFACTS = typer.Option(
    "--artifacts",
    metavar="PLACE",
    help="Where the store, the tables and the reports are: a folder or s3://bucket/prefix. Also artifacts=PLACE.",
)
Artifacts = Annotated[str, _ARTIFACTS]
ArtifactsOfSweep = Annotated[str | None, _ARTIFACTS]


def with_artifacts(overrides: list[str] | None, artifacts: str | None) -> list[str]:
    """Return the overrides of a sweep, with the override that means the same as the option `--artifacts`."""
    if artifacts is None:
        return list(overrides or [])
    from qnnsweep.conf.compose import quoted

    return [*(overrides or []), f"artifacts={quoted(artifacts)}"]


def store_at(artifacts: str) -> "Store":
    """Return the store at `artifacts`. Raises RequestError."""
    from qnnsweep.conf.check import artifacts_problems
    from qnnsweep.tasks.storage.store import Store

    for error in artifacts_problems(artifacts, key="--artifacts"):
        raise error
    return Store.at(artifacts)


def console() -> Console:
    """Return the console of stdout. If stdout is not a terminal, the console's lines are wide enough for any table."""
    return Console() if sys.stdout.isatty() else Console(width=_WIDTH_OF_A_FILE)


def print_output(contents: Mapping[str, Any], *parts: RenderableType, as_json: bool) -> None:
    """Print `contents` as one line of JSON if `as_json` is set. Otherwise print the tables and lines."""
    if as_json:
        print(json.dumps(contents))
    else:
        for part in parts:
            console().print(part)


def usage_line(error: typer.TyperException) -> str:
    """Return an error of Typer about the words of a command line as one line, which names the command with the help."""
    text = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    context: typer.Context | None = getattr(error, "ctx", None)
    command = context.command_path if context else "qnnsweep"
    return f"{text[:1].lower()}{text[1:]}; `{command} -h` shows the arguments and options"


@contextmanager
def bytes_done(verb: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of long work on the terminal. The caller passes the number of bytes done and of all bytes."""
    columns = (TextColumn(verb), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    terminal = Console(stderr=True)
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as progress:
        task = progress.add_task(verb, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def exit_on_error(debug: bool) -> Iterator[None]:
    """Turn an error of qnnsweep into one line on stderr and an exit code. `debug`: also print the traceback."""
    try:
        yield
    except QnnsweepError as error:
        if debug:
            traceback.print_exc()
        print(f"qnnsweep: {error}", file=sys.stderr)
        codes = {EnvironmentUnusable: ENVIRONMENT_UNUSABLE, DeviceError: DEVICES_UNUSABLE}
        is_wrong = isinstance(error, RequestError)
        raise typer.Exit(REQUEST_WRONG if is_wrong else codes.get(type(error), NOT_ALL_PASSED)) from None
