"""The files of a run, linked under readable names.

Some files are records from which `recompare` compares a cell again without a device. Others are for external tools:
Perfetto can open the trace; Model Explorer can open the graphs and the files with numbers for the graphs' nodes. The
content of every file is a blob of the store, because most contents do not change from night to night.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from qnnsweep.conf.schema import Request
from qnnsweep.flows.runs.results import run_folder
from qnnsweep.flows.server.log import warn
from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import Blob, Capture, CapturedMethod, LoweredMethod, LoweredProgram
from qnnsweep.tasks.records.cell_folder import cell_folder
from qnnsweep.tasks.records.methods import in_method, named_operator
from qnnsweep.tasks.report.model_explorer import edge_graph, exported_node_data, node_data
from qnnsweep.tasks.report.perfetto import trace
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.stage import RECORDS
from qnnsweep.tasks.storage.codec import decode, encode, is_encoding_of
from qnnsweep.tasks.storage.store import Store

LOWERED, CAPTURE = "lowered.parquet", "capture.parquet"
TRACE = "perfetto_trace.json"
MODEL_EXPLORER = "model_explorer"


@dataclass(frozen=True, kw_only=True, slots=True)
class CellEvidence:
    """The records that a cell's comparison needs. With them, the comparison can be repeated without a device."""

    lowered: LoweredProgram
    capture: Capture

    def of_operator(self, name: str) -> tuple[LoweredMethod, CapturedMethod, str]:
        """Return the method that has the operator, its files, and the operator's name in it.

        Of a name that begins with the name of no method, it is the first method.
        """
        pairs = [*zip(self.lowered.methods, self.capture.methods, strict=True)]
        of_name = (pair for pair in pairs if name.startswith(_folder(pair[0])))
        lowered, capture = next(of_name, pairs[0])
        return lowered, capture, name.removeprefix(_folder(lowered))


def link_files(cells: Sequence[CellResult], run_id: str, store: Store) -> None:
    """Link the files of every lowered cell, such as `files/<model>/<scheme>/<soc>/<backend>/<device>/program.pte`.

    If a blob is missing or damaged, its cell has fewer files or none, which is logged.
    """
    for cell in cells:
        try:
            if blobs := dict(_files(cell)) | dict(_evidence(cell, store)) | dict(_for_viewers(cell, store)):
                store.link_named(_files_folder(run_id, cell_folder(cell.request.names)), blobs)
        except EvidenceError as error:
            warn(f"{cell_folder(cell.request.names)}: files are left out: {error}")


def read_evidence(run_id: str, request: Request, store: Store) -> CellEvidence | None:
    """Return the evidence of a cell, or None if the cell has no capture. Raises EvidenceError for a damaged file."""
    return read_cell_evidence(run_id, cell_folder(request.names), store)


def read_cell_evidence(run_id: str, cell: str, store: Store) -> CellEvidence | None:
    """Return the evidence in the folder of a cell; see `read_evidence`."""
    folder = _files_folder(run_id, cell)
    try:
        lowered, capture = (decode(store.read_named(folder, name)) for name in (LOWERED, CAPTURE))
    except FileNotFoundError:
        return None
    if not isinstance(lowered, LoweredProgram) or not isinstance(capture, Capture):
        raise EvidenceError(f"{store.display_path(folder)}: {LOWERED} and {CAPTURE} are not the evidence of a cell")
    return CellEvidence(lowered=lowered, capture=capture)


def _files_folder(run_id: str, cell: str) -> str:
    return f"{run_folder(run_id)}/files/{cell}"


def _files(cell: CellResult) -> Iterator[tuple[str, Blob]]:
    """Yield the files of every method. A method's name is the folder of its files, except for a program's only one."""
    blobs: dict[str, Blob | None] = {}
    if cell.lowered is not None:
        blobs |= {"program.pte": cell.lowered.program, "program.bpte": cell.lowered.bundled_program}
    for lowered in cell.lowered.methods if cell.lowered else ():
        exported, method = lowered.exported, _folder(lowered)
        blobs |= {
            f"{method}outputs_eager.safetensors": exported.outputs_eager,
            f"{method}etrecord.bin": lowered.etrecord,
            f"{method}delegated_graph.txt": lowered.delegated_graph,
            f"{method}{MODEL_EXPLORER}/exported.pt2": exported.program,
        }
        for number, debug in enumerate(lowered.debug_programs, start=1):
            part = _part(None if debug.span is None else number)
            blobs[f"{method}program_debug{part}.pte"] = debug.program
        if lowered.profile is not None:
            blobs[f"{method}program_profile.pte"] = lowered.profile.program
            schematics = enumerate(lowered.profile.schematics)
            blobs |= {f"{method}schematic_{number}.txt": blob for number, blob in schematics}
    captured = cell.capture.methods if cell.capture else ()
    for lowered, capture in zip(cell.lowered.methods if cell.lowered else (), captured, strict=False):
        method = _folder(lowered)
        blobs |= {
            f"{method}outputs.safetensors": capture.outputs,
            f"{method}etdump.etdp": capture.etdump,
            f"{method}etdump_profile.etdp": capture.etdump_profile,
        }
        launches = Counter[int | None]()
        for debug in capture.debug:
            part, number = _part(debug.part), launches[debug.part]
            again = f"_again{_part(number if number > 1 else None)}" if number else ""
            launches[debug.part] += 1
            blobs |= {
                f"{method}etdump_debug{part}{again}.etdp": debug.etdump,
                f"{method}debug_output{part}{again}.bin": debug.buffer,
            }
    yield from ((name, blob) for name, blob in blobs.items() if blob is not None)


def _part(number: int | None) -> str:
    return "" if number is None else f"_{number}"


def _folder(lowered: LoweredMethod) -> str:
    return in_method("", lowered.exported.method)


def _evidence(cell: CellResult, store: Store) -> Iterator[tuple[str, Blob]]:
    if cell.lowered is not None and cell.capture is not None:
        yield LOWERED, store.put_bytes(_encoded(cell.lowered, cell.result_names.get("lowered"), store))
        yield CAPTURE, store.put_bytes(_encoded(cell.capture, cell.result_names.get("capture"), store))


def _encoded(record: LoweredProgram | Capture, result_name: str | None, store: Store) -> bytes:
    """Return the cached bytes of the record if the cache has it under `result_name`. Otherwise encode it again."""
    if result_name is not None:
        with suppress(FileNotFoundError):
            data = store.files.read(f"{RECORDS}/{result_name}")
            if is_encoding_of(data, record):
                return data
    return encode(record)


def _for_viewers(cell: CellResult, store: Store) -> Iterator[tuple[str, Blob]]:
    """Yield the trace for Perfetto, and all files for Model Explorer except the exported program."""
    comparison, first = cell.comparison, 0
    if cell.lowered is None or comparison is None:
        return
    for lowered in cell.lowered.methods:
        exported, folder = lowered.exported, _folder(lowered)
        profile = [event for event in comparison.profile if event.method == exported.method]
        if profile:
            title = f"{cell_folder(cell.request.names)}/{folder}".rstrip("/")
            yield f"{folder}{TRACE}", store.put_bytes(_json(trace(title, profile)))
        operators = [named_operator(operator, exported.method, first) for operator in lowered.operators]
        first += len(operators)
        calls = store.read(lowered.reference_calls)
        rows = [row for row in comparison.operators if row.operator.method == exported.method]
        others = [row for row in comparison.other_references if row.operator.method == exported.method]
        graphs = {"edge": edge_graph(operators, exported.inputs, calls)}
        graphs |= {f"edge_{name}": contents for name, contents in node_data(rows).items()}
        graphs |= {f"exported_{name}": contents for name, contents in exported_node_data(others).items()}
        for name, contents in graphs.items():
            yield f"{folder}{MODEL_EXPLORER}/{name}.json", store.put_bytes(_json(contents))


def _json(contents: dict[str, Any]) -> bytes:
    return json.dumps(contents, allow_nan=False).encode()
