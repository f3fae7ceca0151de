"""What every verb of the command line shares: its options, its exit codes, how it speaks."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console

from flows.exit_codes import DEVICES_UNUSABLE, ENVIRONMENT_UNUSABLE, NOT_ALL_PASSED, REQUEST_WRONG
from tasks.errors import DeviceError, EnvironmentUnusable, QnnsweepError, RequestError

_WIDTH_OF_A_FILE = 160

Json = Annotated[bool, typer.Option("--json", help="End with one JSON object on the last line of stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Artifacts = Annotated[
    str,
    typer.Option(
        "--artifacts", metavar="PLACE", help="Of the store, the tables and the reports: a folder or s3://bucket/prefix."
    ),
]


def console() -> Console:
    """Standard output; a file gets lines as wide as a table wants them."""
    return Console() if sys.stdout.isatty() else Console(width=_WIDTH_OF_A_FILE)


@contextmanager
def exit_on_error(debug: bool) -> Iterator[None]:
    """Our own errors become one line and an exit code; with --debug the traceback too."""
    try:
        yield
    except QnnsweepError as error:
        if debug:
            traceback.print_exc()
        print(f"qnnsweep: {error}", file=sys.stderr)
        codes = {RequestError: REQUEST_WRONG, EnvironmentUnusable: ENVIRONMENT_UNUSABLE, DeviceError: DEVICES_UNUSABLE}
        raise typer.Exit(codes.get(type(error), NOT_ALL_PASSED)) from None
