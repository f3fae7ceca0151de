"""The comparison of the programs of two runs: of their bytes, and of what the runs recorded when they made them."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from safetensors import deserialize

from qnnsweep.flows.runs.files import read_cell_evidence
from qnnsweep.flows.runs.names import resolve
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.records import InspectedOperator, InspectedProgram, InspectedTensor, LoweredMethod, LoweredProgram
from qnnsweep.tasks.records.cell_folder import folder_of
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.readback.inspection import inspect_program
from qnnsweep.tasks.toolchain.readback.program_changes import ProgramChange, program_changes


@dataclass(frozen=True, kw_only=True, slots=True)
class CellPrograms:
    """What differs between the programs of a cell."""

    cell: str
    changes: Sequence[ProgramChange]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramDifference:
    """What differs between the programs of two runs."""

    run_a: str
    run_b: str
    only_in_a: Sequence[str]
    """The cells of which only the first run has a program."""
    only_in_b: Sequence[str]
    cells: Sequence[CellPrograms]
    """The cells of which both runs have a program."""


def diff_programs(store: Store, run_a: str, run_b: str) -> ProgramDifference:
    """Compare the programs of the common cells of two runs. Raises RequestError if there are none."""
    ids = [resolve(store, run) for run in (run_a, run_b)]
    cells = [_programs(store, run_id) for run_id in ids]
    common = [cell for cell in cells[1] if cell in cells[0]]
    if not common:
        raise RequestError(f"RUN_A={ids[0]} and RUN_B={ids[1]} have no cell of which both have a program")
    return ProgramDifference(
        run_a=ids[0],
        run_b=ids[1],
        only_in_a=[cell for cell in cells[0] if cell not in cells[1]],
        only_in_b=[cell for cell in cells[1] if cell not in cells[0]],
        cells=[CellPrograms(cell=cell, changes=cell_changes(store, *(of[cell] for of in cells))) for cell in common],
    )


def _programs(store: Store, run_id: str) -> dict[str, LoweredProgram]:
    folders = map(folder_of, tables.rows(store, "cells", run_id))
    evidence = {folder: read_cell_evidence(run_id, folder, store) for folder in folders}
    return {folder: found.lowered for folder, found in evidence.items() if found is not None}


def cell_changes(store: Store, a: LoweredProgram, b: LoweredProgram) -> list[ProgramChange]:
    """Return what differs between two programs: in their bytes, and in what was recorded when they were made."""
    if replace(a, made=(), checks=()) == replace(b, made=(), checks=()):
        return []
    return program_changes(_contents(store, a), _contents(store, b))


def _contents(store: Store, lowered: LoweredProgram) -> InspectedProgram:
    """Return the contents of a program, with the operators, encodings and constants of the graphs it was made from."""
    program = inspect_program(store.read(lowered.program))
    tensors, operators = [*program.tensors], [*program.operators]
    for method in lowered.methods:
        where = f"edge graph of {method.exported.name}"
        for row in method.operators:
            tensors.append(_encoding(where, method, row.index))
            subgraph = "on the CPU" if row.subgraph is None else f"in subgraph {row.subgraph}"
            operators.append(
                InspectedOperator(
                    method=where, subgraph=None, number=row.index, operator=row.target, arguments=subgraph
                )
            )
        tensors += _constants(where, method, store)
    return replace(program, tensors=tuple(tensors), operators=tuple(operators))


def _encoding(where: str, method: LoweredMethod, index: int) -> InspectedTensor:
    row = method.operators[index]
    grid = row.quantization
    return InspectedTensor(
        method=where,
        subgraph=None,
        role="value",
        name=_named(method, index),
        dtype=(grid.dtype if grid else row.dtype) or "tuple",
        shape=row.shape or (),
        scale=grid.scale if grid else None,
        zero_point=grid.zero_point if grid else None,
        bytes=None,
        sha256=None,
    )


def _constants(where: str, method: LoweredMethod, store: Store) -> Iterator[InspectedTensor]:
    readers: dict[str, int] = {}
    for index, call in enumerate(json.loads(store.read(method.reference_calls))["calls"]):
        for name in _read_constants(call):
            readers.setdefault(name, index)
    stored = dict(deserialize(store.read(method.reference_constants)))
    for name in sorted(stored, key=lambda name: (readers.get(name, -1), name)):
        tensor = stored[name]
        reader = f", read by {_named(method, readers[name])}" if name in readers else ""
        yield InspectedTensor(
            method=where,
            subgraph=None,
            role="constant",
            name=f"{name}{reader}",
            dtype=tensor["dtype"],
            shape=tuple(tensor["shape"]),
            scale=None,
            zero_point=None,
            bytes=len(tensor["data"]),
            sha256=hashlib.sha256(tensor["data"]).hexdigest(),
        )


def _read_constants(encoded: Any) -> Iterator[str]:
    """Yield the names in the mappings `{"constant": name}` of a call's arguments."""
    if isinstance(encoded, dict) and encoded.keys() == {"constant"}:
        yield encoded["constant"]
    elif isinstance(encoded, dict | list):
        for element in encoded.values() if isinstance(encoded, dict) else encoded:
            yield from _read_constants(element)


def _named(method: LoweredMethod, index: int) -> str:
    row = method.operators[index]
    return f"{row.name} in {row.module_path}" if row.module_path else row.name
