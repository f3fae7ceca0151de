"""The command `qnnsweep simulate`: many samples with the model of the device's arithmetic, on the host."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from qnnsweep.flows.cli.command import Output, Words
from qnnsweep.flows.cli.options import RunOfCell, quiet_torch
from qnnsweep.tasks.report.format import percent, plain_table

EXITS = "Exit codes: 0 evaluated · 2 there is no such cell, or it cannot be simulated."


def simulate(
    words: Words,
    cell: Annotated[str, typer.Argument(metavar="CELL", help="A cell, such as MODEL/SCHEME/SOC.")],
    run_: RunOfCell = None,
    samples: Annotated[
        str | None,
        typer.Option(
            "--samples",
            metavar="FILE",
            help="A .npy, .npz or .safetensors file with inputs, and `label` with the right classes. By default the "
            "samples with which the cell was measured.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", metavar="NAME", help="Count the outputs of this method alone. By default all do."),
    ] = None,
) -> Output:
    """Evaluate any number of samples with the model of the device's arithmetic, at the speed of the host.

    Needs a cell that was compiled, and no device. A model with states runs its sequences step by step, with the states
    that the simulated steps write. What the device computes beyond the model is not in it: the column
    `device_snr_db` of the cell says how much that is.
    """
    from qnnsweep.flows.simulate import simulate as evaluate

    quiet_torch()
    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task("samples", total=None)
        show = lambda done, total: progress.update(task, completed=done, total=total)  # noqa: E731
        found = evaluate(words.store, run_, cell, method, samples, show)
    table = plain_table("", "simulated", "95 % interval", "eager", right=("simulated", "eager"))
    table.add_row("lowest SNR", f"{found.snr_db:.1f} dB", found.worst_sample, "")
    table.add_row("mean SNR", f"{found.mean_snr_db:.1f} dB", "", "")
    if found.top1_agreement is not None:
        interval = _interval(found.top1_agreement_low, found.top1_agreement_high)
        table.add_row("same top-1 %", percent(found.top1_agreement), interval, "")
    if found.accuracy is not None:
        interval = _interval(found.accuracy_low, found.accuracy_high)
        table.add_row("accuracy %", percent(found.accuracy), interval, percent(found.accuracy_eager))
    table.caption = f"{cell}: {found.samples:,} samples"
    return Output(contents={"cell": cell, **asdict(found)}, parts=[table])


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{percent(low)} to {percent(high)}"
