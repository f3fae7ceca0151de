"""A reader of ExecuTorch's ETRecords, which runs no code that they contain. Runs in a worker: it imports torch.

A file of `torch.export.save` can take the place of an ETRecord, for the outputs alone: it has no operators of the edge
program, and does not say which of them a delegate or the runtime logs.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from executorch.exir.serde.export_serialize import SerializedArtifact
from executorch.exir.serde.serialize import deserialize
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from qnnsweep.tasks.errors import EvidenceError, raise_shortage
from qnnsweep.tasks.models.program_file import program, refuse_expressions
from qnnsweep.tasks.records.keys import METHOD

_EDGE, _AFTER_PASSES, _EXPORTED = "edge_dialect_exported_program", "edge_after_transform", "exported_program"
_OF_PROGRAM = "/archive_format"
_PARTS = ("", "_state_dict", "_constants", "_example_inputs")


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedMethod:
    """What an ETRecord has of a method. The keys are the numbers of the program's instructions."""

    exported: ExportedProgram | None
    """The exported program, if the ETRecord has one: it has that of the method `forward` alone."""
    edge: ExportedProgram
    """The edge program that was delegated: after the backend's passes, if it is recorded. See `has_edge`."""
    handles: Mapping[int, tuple[int, ...]]
    """The debug handles of the edge operators that an instruction computes, in their order."""
    logged: Mapping[int, Mapping[str, tuple[int, ...]]]
    """Per delegate call, the debug handles of the tensors that the delegate logs by name."""
    outputs: Mapping[int, int]
    """Per delegate call, the number of its outputs."""
    inputs: tuple[torch.Tensor, ...] | None
    """The representative inputs."""
    has_edge: bool = True
    """Whether `edge` is an edge program, and not an exported one."""


def read_etrecord(file: Path, method: str) -> RecordedMethod:
    """Return what an ETRecord, or a file of torch.export, has of a method.

    Raises EvidenceError if it is damaged or lacks the method.
    """
    try:
        with ZipFile(file) as archive:
            if any(name.endswith(_OF_PROGRAM) for name in archive.namelist()):
                return _of_program(program(str(file)))
            return _read(archive, method)
    except EvidenceError:
        raise
    except Exception as error:  # a damaged file makes torch and ExecuTorch raise anything
        raise_shortage(error)
        line = str(error).strip().partition("\n")[0]
        raise EvidenceError(f"not a readable ETRecord: {type(error).__name__}: {line}") from error


def _read(archive: ZipFile, method: str) -> RecordedMethod:
    names = archive.namelist()
    if "ETRECORD_V0" not in names:
        raise BadZipFile("it has no ETRECORD_V0")
    for name in names:  # all of them, because ExecuTorch's Inspector reads all
        if f"{name}_state_dict" in names:
            refuse_expressions(json.loads(archive.read(name)), name)

    def maps(name: str) -> dict[str, Any]:
        return json.loads(archive.read(name)) if name in names else {}

    candidates = [f"{_AFTER_PASSES}/{method}", f"{_EDGE}/{method}"]
    handled = [name for name, handles in maps("debug_handle_map").items() if handles]
    if method == METHOD or handled == [method]:  # ExecuTorch calls the only edge program `forward` in any case
        candidates += [f"{_EDGE}/{METHOD}", _EDGE]
    edge = next((name for name in candidates if name in names), None)
    if edge is None:
        raise EvidenceError(
            f"the ETRecord has no edge program of the method {method}; record it with generate_etrecord"
        )

    def of_method(name: str) -> dict[int, Any]:
        return {int(number): value for number, value in (maps(name).get(method, {}) or {}).items()}

    delegates = of_method("delegate_map")
    return RecordedMethod(
        exported=_program(archive, _EXPORTED) if method == METHOD and _EXPORTED in names else None,
        edge=_program(archive, edge),
        handles={number: _handles(handles) for number, handles in of_method("debug_handle_map").items()},
        logged={
            number: {name: _handles(handles) for name, handles in call["delegate_map"].items()}
            for number, call in delegates.items()
        },
        outputs={number: int(count) for number, count in of_method("instruction_id_to_num_outs_map").items()},
        inputs=_inputs(archive) if "representative_inputs" in names else None,
    )


def _of_program(exported: ExportedProgram) -> RecordedMethod:
    given = tree_leaves(exported.example_inputs)
    inputs = tuple(given) if given and all(isinstance(value, torch.Tensor) for value in given) else None
    return RecordedMethod(
        exported=None, edge=exported, handles={}, logged={}, outputs={}, inputs=inputs, has_edge=False
    )


def _program(archive: ZipFile, name: str) -> ExportedProgram:
    graph, *others = (archive.read(f"{name}{part}") for part in _PARTS)
    return deserialize(SerializedArtifact(graph, *others))


def _inputs(archive: ZipFile) -> tuple[torch.Tensor, ...] | None:
    stored: Any = torch.load(io.BytesIO(archive.read("representative_inputs")), weights_only=True)
    is_usable = isinstance(stored, Sequence) and all(isinstance(value, torch.Tensor) for value in stored)
    return tuple(stored) if is_usable else None


def _handles(value: Any) -> tuple[int, ...]:
    return tuple(int(handle) for handle in (value if isinstance(value, list) else [value]) if handle)
