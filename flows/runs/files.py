"""The files of a run, linked under readable names.

Some files are records from which `recompare` compares a cell again without a device. Others are for external tools:
Perfetto can open the trace; Model Explorer can open the graphs and the files with numbers for the graphs' nodes. The
content of every file is a blob of the store, because most contents do not change from night to night.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from conf.schema import Request
from flows.log import warn
from flows.runs.results import run_folder
from tasks.errors import EvidenceError
from tasks.records import Blob, Capture, LoweredProgram
from tasks.records.cell_folder import cell_folder
from tasks.report.model_explorer import edge_graph, exported_node_data, node_data
from tasks.report.perfetto import trace
from tasks.results.outcome import CellResult
from tasks.stage import RECORDS
from tasks.storage.codec import decode, encode, is_encoding_of
from tasks.storage.store import Store

LOWERED, CAPTURE = "lowered.parquet", "capture.parquet"
TRACE = "perfetto_trace.json"
MODEL_EXPLORER = "model_explorer"


@dataclass(frozen=True, kw_only=True, slots=True)
class CellEvidence:
    """The records that a cell's comparison needs. With them, the comparison can be repeated without a device."""

    lowered: LoweredProgram
    capture: Capture


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
    blobs: dict[str, Blob | None] = {}
    if (lowered := cell.lowered) is not None:
        blobs |= {
            "outputs_eager.safetensors": lowered.quantized.exported.outputs_eager,
            "program.pte": lowered.program,
            "program.bpte": lowered.bundled_program,
            "program_debug.pte": lowered.debug_program,
            "etrecord.bin": lowered.etrecord,
            "delegated_graph.txt": lowered.delegated_graph,
            f"{MODEL_EXPLORER}/exported.pt2": lowered.quantized.exported.program,
        }
        if lowered.profile is not None:
            blobs["program_profile.pte"] = lowered.profile.program
            blobs |= {f"schematic_{number}.txt": blob for number, blob in enumerate(lowered.profile.schematics)}
    if (capture := cell.capture) is not None:
        blobs |= {
            "outputs.safetensors": capture.outputs,
            "etdump.etdp": capture.etdump,
            "etdump_debug.etdp": capture.etdump_debug,
            "debug_output.bin": capture.debug_buffer,
            "etdump_profile.etdp": capture.etdump_profile,
        }
    yield from ((name, blob) for name, blob in blobs.items() if blob is not None)


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
    lowered, comparison = cell.lowered, cell.comparison
    if lowered is None or comparison is None:
        return
    if comparison.profile:
        yield TRACE, store.put_bytes(_json(trace(cell_folder(cell.request.names), comparison.profile)))
    inputs = lowered.quantized.exported.inputs
    graphs = {"edge": edge_graph(lowered.operators, inputs, store.read(lowered.reference_calls))}
    graphs |= {f"edge_{name}": contents for name, contents in node_data(comparison.operators).items()}
    exported = exported_node_data(comparison.other_references)
    graphs |= {f"exported_{name}": contents for name, contents in exported.items()}
    for name, contents in graphs.items():
        yield f"{MODEL_EXPLORER}/{name}.json", store.put_bytes(_json(contents))


def _json(contents: dict[str, Any]) -> bytes:
    return json.dumps(contents, allow_nan=False).encode()
