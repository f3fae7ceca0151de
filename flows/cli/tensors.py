"""The command `qnnsweep tensors`: all elements of one operator's tensors, as a file for NumPy."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from qnnsweep.flows.cli.command import Output, Words
from qnnsweep.flows.cli.completion import complete_run
from qnnsweep.flows.cli.options import RUN_NAMES, quiet_torch
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.report.format import plain_table

EXITS = "Exit codes: 0 written · 2 there is no such tensor."


def tensors(
    words: Words,
    run_id: Annotated[str, typer.Argument(metavar="RUN", help=f"A run: {RUN_NAMES}.", autocompletion=complete_run)],
    cell: Annotated[str, typer.Argument(metavar="CELL", help="A cell, such as MODEL/SCHEME/SOC.")],
    operator: Annotated[str, typer.Argument(metavar="OPERATOR", help="An operator, or the path of its module.")],
    sample: Annotated[
        int | None, typer.Option("--sample", help="A captured sample. By default the device's worst one.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="Where to write. By default OPERATOR.npz.")
    ] = None,
) -> Output:
    """Write the tensors of one operator, on the device and on the host, to a file that numpy.load reads.

    The tensors are in PyTorch's layout. `device` is what the device computed, `on_host` what the host computes from the
    device's own inputs, `reference` what the host computes from the model's inputs, `quantized` the device's integers.
    """
    from qnnsweep.flows.runs.names import find_run_of_cell
    from qnnsweep.tasks.records.cell_folder import folder_of

    store = words.store
    run_id, row = find_run_of_cell(store, run_id, cell)
    folder = folder_of(row)
    quiet_torch()
    import numpy as np

    from qnnsweep.flows.runs.files import read_cell_evidence
    from qnnsweep.tasks.comparison.tensors import operator_tensors

    if (evidence := read_cell_evidence(run_id, folder, store)) is None:
        raise RequestError(f"CELL={cell}: nothing was captured of this cell; see its row in the report")
    lowered, capture, name = evidence.of_operator(operator)
    if sample is None:
        sample = next(iter(sorted(capture.captured, key=lambda number: number != row["worst_sample"])), None)
    by_name = operator_tensors(lowered, capture, name, sample, store)
    path = to or Path(f"{operator.replace('/', '-')}.npz")
    try:
        with path.open("wb") as file:
            np.savez(file, **by_name)  # pyright: ignore[reportArgumentType] - every name is a tensor's
    except OSError as error:
        raise RequestError(f"--to={path}: cannot be written: {error.strerror}; name another file") from error
    table = plain_table("tensor", "type", "shape", caption=f"sample {sample}; numpy.load reads {path}")
    for name, tensor in by_name.items():
        table.add_row(Text(name), Text(str(tensor.dtype)), Text("×".join(map(str, tensor.shape)) or "scalar"))
    return Output(contents={"file": str(path), "sample": sample, "tensors": list(by_name)}, parts=[table])
