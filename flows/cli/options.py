"""The parameters that several commands share, and the terminal."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from qnnsweep.flows.cli.completion import complete_override, complete_run

_WIDTH_OF_A_FILE = 160

EXITS = """
Exit codes: 0 all cells passed · 1 some cell failed or is out of tolerance · 2 the request is wrong, nothing ran ·
3 this machine lacks something, or a file is damaged · 4 devices unusable.
"""

RUN_NAMES = "an id, the beginning of an id, `latest` or `previous`"
LatestRun = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help=f"A run: {RUN_NAMES}. By default the latest.", autocompletion=complete_run),
]


def _run_option(default: str) -> Any:
    """Return the option that names a run. `default`: the run without it."""
    return typer.Option(
        "--run", metavar="RUN", help=f"A run: {RUN_NAMES}. By default {default}.", autocompletion=complete_run
    )


OptionalRun = Annotated[str | None, _run_option("the latest")]
RunOfCell = Annotated[str | None, _run_option("the latest that has the cell")]

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

Multirun = Annotated[
    bool, typer.Option("--multirun", "-m", help="As in Hydra: run every combination of values. This is always done.")
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
Pool = Annotated[
    str | None,
    typer.Option("--pool", help="Run parts of the sweep on the workers of this Prefect work pool; see docs/scale.md."),
]


def console() -> Console:
    """Return the console of stdout. If stdout is not a terminal, the console's lines are wide enough for any table."""
    return Console() if sys.stdout.isatty() else Console(width=_WIDTH_OF_A_FILE)


def quiet_torch() -> None:
    """Let PyTorch's packages log errors alone: they warn about GPU libraries that are missing."""
    for library in ("torch", "torchao", "torch.utils._pytree"):
        logging.getLogger(library).setLevel(logging.ERROR)


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
