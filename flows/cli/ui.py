"""The command `qnnsweep ui`: it serves the reports and files of runs to browsers of this machine, for reading only."""

import os
import sys
from contextlib import suppress
from typing import Annotated

import typer

from qnnsweep.flows.cli.command import Words
from qnnsweep.tasks.errors import EnvironmentUnusable, RequestError

PORT = 4280


def ui(
    words: Words,
    port: Annotated[
        int,
        typer.Option("--port", min=0, max=65535, help="The port on 127.0.0.1. Links in Prefect: prefect.reports_url."),
    ] = PORT,
) -> None:
    """Serve the reports and the files of runs to browsers of this machine, until you stop the command.

    Whoever can use this machine can read them. Nothing can be changed.
    """
    artifacts, store = words.artifacts, words.store
    if not store.url and not store.root.is_dir():
        raise RequestError(
            "there is no such folder; name the artifacts folder of a run", key="--artifacts", value=artifacts
        )
    from qnnsweep.flows.cli.report_server import ReportServer

    try:
        server = ReportServer(store, port)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise EnvironmentUnusable(f"--port={port}: {reason}", remedy="choose another port") from error
    with server, suppress(KeyboardInterrupt):
        print(f"reports of {artifacts}: {server.url}\nCtrl-C ends this process", file=sys.stderr, flush=True)
        server.serve_forever()
