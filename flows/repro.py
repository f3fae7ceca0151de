"""A reproducer of one operator's error: a folder that runs without qnnsweep.

PyTorch is imported only after the request has been checked.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from qnnsweep.conf.toolchains import DEFAULT_TOOLCHAIN
from qnnsweep.flows.runs.files import CellEvidence, read_cell_evidence
from qnnsweep.flows.runs.history import names
from qnnsweep.flows.runs.names import find_run_of_cell
from qnnsweep.tasks.errors import EnvironmentUnusable, RequestError
from qnnsweep.tasks.records.cell_folder import folder_of
from qnnsweep.tasks.records.operator_names import operators_named
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.storage import lock, tables
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.qnn.sdk import Sdk, find_sdk


@dataclass(frozen=True, kw_only=True, slots=True)
class Reproducer:
    """A complete folder, the error that repro.py prints, and that of its twin."""

    folder: Path
    cell: str
    operator: str
    sample: int
    operators: tuple[str, ...]
    error: float
    cell_error: float
    twin: str | None
    twin_error: float | None
    recording: str | None
    """Why there is no recording of QNN's calls; None if there is one."""
    size_bytes: int


def reproduce(
    store: Store,
    run_name: str | None,
    cell: str,
    operator: str | None,
    to: Path | None,
    socs: Mapping[str, int],
    say: Callable[[str], None],
) -> Reproducer:
    """Write the folder of an operator that introduces error; None means the cell's worst such operator.

    `socs`: the architectures of the SoCs that the twin may be compiled for. `say`: is called with a line per program
    that was tried. Raises RequestError for a wrong request, and NotReproduced if no small program shows the error.
    """
    with lock.shared(store):
        run_id, row = find_run_of_cell(store, run_name, cell)
        evidence = _evidence(store, run_id, cell, row)
        sdk = _sdk(cell, row)
        worst = _worst_row(tables.rows(store, "operators", run_id), row, operator)
        name, sample = str(worst["operator"]), int(worst["sample"])
        folder = to or Path(f"repro-{row['model']}-{row['scheme']}-{row['soc']}-{name}".replace("/", "_"))
        if folder.exists():
            raise RequestError(f"--to={folder}: exists already; name another folder, or remove it")
        reported = worst["introduced_steps"] if worst["introduced_steps"] is not None else worst["introduced_max_abs"]
        from qnnsweep.tasks.repro.case import read_case
        from qnnsweep.tasks.repro.make import Source, make

        lowered, capture, plain_name = evidence.of_operator(name)
        case = read_case(lowered, capture, plain_name, sample, reported, store)
        say(f"{folder_of(row)}: {name}, sample {sample}: the error is {case.error!r}")
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
        except OSError as error:
            raise RequestError(f"--to={folder}: cannot be created: {error.strerror}; name another folder") from error
        delegate = lowered.facts.delegates[case.operator.subgraph or 0]
        source = Source(
            model=str(row["model"]),
            scheme=str(row["scheme"]),
            soc=str(row["soc"]),
            run_id=run_id,
            sample=sample,
            floats=delegate.precision == "float16",
            versions={"python": str(row["python"]), "QNN build": sdk.build, "QNN from": sdk.origin},
        )
        try:
            result, recording = make(case, source, partial, socs, say)
            partial.rename(folder)
        except OSError as error:
            raise EnvironmentUnusable(
                f"{folder}: {error.strerror}", remedy="free some space, or name another folder"
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return Reproducer(
        folder=folder,
        cell=folder_of(row),
        operator=name,
        sample=sample,
        operators=tuple(case.operators[index].name for index in result.base.program.members),
        error=result.error,
        cell_error=case.error,
        twin=result.twin.description if result.twin else None,
        twin_error=result.twin_error,
        recording=recording,
        size_bytes=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
    )


def _evidence(store: Store, run_id: str, cell: str, row: Row) -> CellEvidence:
    if row["backend"] != "qnn":
        raise RequestError(
            f"CELL={cell}: only the errors of the backend qnn can be reproduced, not of {row['backend']}"
        )
    if row["toolchain"] not in (None, DEFAULT_TOOLCHAIN):
        raise RequestError(
            f"CELL={cell}: was compiled with the toolchain {row['toolchain']}; only cells of toolchain=default can be "
            "reproduced, because others cannot be used without the folder of the toolchain"
        )
    evidence = read_cell_evidence(run_id, folder_of(row), store)
    if evidence is None:
        raise RequestError(f"CELL={cell}: nothing was captured of this cell; see its row in the report")
    if all(not method.debug for method in evidence.capture.methods):
        raise RequestError(
            f"CELL={cell}: its operators were not captured; run it again with measure.operator_samples=1"
        )
    return evidence


def _sdk(cell: str, row: Row) -> Sdk:
    """Return the SDK of this environment. Raises RequestError if the cell was compiled with another release."""
    sdk = find_sdk(os.environ)
    here = {"QNN": sdk.build, "executorch": metadata.version("executorch"), "torch": metadata.version("torch")}
    for name, version in here.items():
        measured = row[name.lower()]
        if measured is not None and measured != version:
            raise RequestError(
                f"CELL={cell}: was compiled with {name} {measured}, but this environment has {version}; "
                "run the cell again here, or use the environment in which it ran"
            )
    return sdk


def _worst_row(rows: list[Row], cell: Row, operator: str | None) -> Row:
    """Return the row of the operator, on the sample where it introduces most error. Raises RequestError."""
    of_cell = [
        row
        for row in rows
        if names(row) == names(cell) and row["reference"] == "edge" and row["operator_index"] is not None
    ]
    wrong = [row for row in of_cell if row["verdict"] == "introduced" and row["subgraph"] is not None]
    operators = ", ".join(dict.fromkeys(str(row["operator"]) for row in wrong))
    choices = (
        f"operators that introduce error: {operators}" if operators else "no operator of this cell introduces error"
    )
    if operator is None:
        if not wrong:
            raise RequestError(
                f"CELL={folder_of(cell)}: {choices}, so that there is nothing to reproduce; "
                "`qnnsweep report` shows its errors"
            )
        operator = str(min(wrong, key=_effect_db)["operator"])
    named = operators_named(operator, ((str(row["operator"]), row["module_path"]) for row in of_cell), f"{choices}; ")
    of_operator = [row for row in of_cell if row["operator"] in named]
    candidates = [row for row in wrong if row["operator"] in named]
    if not candidates:
        verdicts = ", ".join(sorted({str(row["verdict"]) for row in of_operator}))
        raise RequestError(f"OPERATOR={operator}: introduces no error (verdict {verdicts}); {choices}")
    return max(candidates, key=lambda row: row["introduced_steps"] or row["introduced_max_abs"] or 0.0)


def _effect_db(row: Row) -> tuple[float, float]:
    """Return the order of operators by their effect on the final outputs; if it is not known, by their own error."""
    effect, introduced = row["effect_snr_db"], row["introduced_snr_db"]
    return (float("inf") if effect is None else effect, float("-inf") if introduced is None else introduced)
