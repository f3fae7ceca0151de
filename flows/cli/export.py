"""The command `qnnsweep export`: a run in a folder that an experiment tracker opens."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from qnnsweep.flows.cli.command import Output, Words
from qnnsweep.flows.cli.options import LatestRun
from qnnsweep.tasks.report.format import plural
from qnnsweep.tasks.report.trackers.names import Tracker

EXITS = "Exit codes: 0 written · 2 the request is wrong, nothing was written · 3 the extra of the tracker is missing."


def export(
    words: Words,
    tracker: Annotated[Tracker, typer.Argument(metavar="TRACKER", help="One of mlflow, wandb and tensorboard.")],
    run_id: LatestRun = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="FOLDER", help="The folder, to which the run is added. By default qnnsweep-TRACKER."
        ),
    ] = None,
) -> Output:
    """Write a run into a folder that MLflow, Weights & Biases or TensorBoard opens. Nothing is sent.

    Each cell is a run of the tracker: its settings are parameters, its numbers are metrics. Needs the extra of the
    tracker, for example `pip install 'qnnsweep[mlflow]'`.
    """
    from qnnsweep.flows.runs.export import export as export_run

    exported = export_run(words.store, run_id, tracker, to)
    lines = (
        f"{plural(exported.cells, 'cell')} of {exported.run_id} in {exported.folder}\nopen them with: {exported.open}"
    )
    return Output(contents=asdict(exported), parts=[lines])
