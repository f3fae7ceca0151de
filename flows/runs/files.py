"""What a run made, under names a person would look for.

Among them the records from which a cell is compared again without a device. What is drawn from them for other tools
lies beside: a trace for Perfetto, the graph and the numbers on its nodes for Model Explorer. All of it is in the store:
most of it is the same most nights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from conf.schema import Request
from flows.runs.results import run_folder
from tasks.errors import EvidenceError
from tasks.records import Blob, Capture, LoweredProgram
from tasks.report.model_explorer import edge_graph, exported_node_data, node_data
from tasks.report.perfetto import trace
from tasks.results.outcome import CellResult
from tasks.stage import RECORDS
from tasks.storage.codec import decode, encode, is_of
from tasks.storage.store import Store

LOWERED, CAPTURE = "lowered.parquet", "capture.parquet"
TRACE = "perfetto_trace.json"
EXPLORED = "model_explorer"


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """All that a comparison needs of a cell: it can be made again without a device."""

    lowered: LoweredProgram
    capture: Capture


def lay_out(cells: Sequence[CellResult], run_id: str, store: Store) -> None:
    """`files/<model>/<scheme>/<soc>/<backend>/<device>/program.pte` and its companions, for every lowered cell."""
    for cell in cells:
        if blobs := dict(_files(cell)) | dict(_evidence(cell, store)) | dict(_drawn(cell, store)):
            store.lay_out(_folder(run_id, cell.request), blobs)


def evidence(run_id: str, request: Request, store: Store) -> Measured | None:
    """What `lay_out` kept of a cell; None if it never came so far. Raises EvidenceError for a file that is damaged."""
    folder = _folder(run_id, request)
    try:
        lowered, capture = (decode(store.laid_out(folder, name)) for name in (LOWERED, CAPTURE))
    except FileNotFoundError:
        return None
    if not isinstance(lowered, LoweredProgram) or not isinstance(capture, Capture):
        raise EvidenceError(f"{store.shown(folder)}: {LOWERED} and {CAPTURE} are not the evidence of a cell")
    return Measured(lowered=lowered, capture=capture)


def _folder(run_id: str, request: Request) -> str:
    return f"{run_folder(run_id)}/files/{_place(request)}"


def _place(request: Request) -> str:
    names = [request.model.name, request.scheme.name, request.soc.name, request.backend.name, request.where]
    return "/".join(map(_component, names))


def _component(name: str) -> str:
    """A name as one component of a path, whatever is in it."""
    return quote(name, safe=" ").replace(".", "%2E") if name.startswith(".") else quote(name, safe=" ")


def _files(cell: CellResult) -> Iterator[tuple[str, Blob]]:
    found: dict[str, Blob | None] = {}
    if (lowered := cell.lowered) is not None:
        found |= {
            "outputs_eager.safetensors": lowered.quantized.exported.outputs_eager,
            "program.pte": lowered.program,
            "program.bpte": lowered.bundled_program,
            "program_debug.pte": lowered.debug_program,
            "etrecord.bin": lowered.etrecord,
            "delegated_graph.txt": lowered.delegated_graph,
            f"{EXPLORED}/exported.pt2": lowered.quantized.exported.program,
        }
        if lowered.profile is not None:
            found["program_profile.pte"] = lowered.profile.program
            found |= {f"schematic_{number}.txt": blob for number, blob in enumerate(lowered.profile.schematics)}
    if (capture := cell.capture) is not None:
        found |= {
            "outputs.safetensors": capture.outputs,
            "etdump.etdp": capture.etdump,
            "etdump_debug.etdp": capture.etdump_debug,
            "debug_output.bin": capture.debug_buffer,
            "etdump_profile.etdp": capture.etdump_profile,
        }
    yield from ((name, blob) for name, blob in found.items() if blob is not None)


def _evidence(cell: CellResult, store: Store) -> Iterator[tuple[str, Blob]]:
    if cell.lowered is not None and cell.capture is not None:
        yield LOWERED, store.put_bytes(_encoded(cell.lowered, cell.kept.get("lowered"), store))
        yield CAPTURE, store.put_bytes(_encoded(cell.capture, cell.kept.get("capture"), store))


def _encoded(record: LoweredProgram | Capture, kept: str | None, store: Store) -> bytes:
    """As it is kept already, unless another run has kept another one under that name since."""
    if kept is not None:
        with suppress(FileNotFoundError):
            data = store.files.read(f"{RECORDS}/{kept}")
            if is_of(data, record):
                return data
    return encode(record)


def _drawn(cell: CellResult, store: Store) -> Iterator[tuple[str, Blob]]:
    """The trace, and what Model Explorer opens beside the exported program itself."""
    lowered, comparison = cell.lowered, cell.comparison
    if lowered is None or comparison is None:
        return
    if comparison.profile:
        yield TRACE, store.put_bytes(_json(trace(_place(cell.request), comparison.profile)))
    inputs = lowered.quantized.exported.inputs
    found = {"edge": edge_graph(lowered.operators, inputs, store.read(lowered.reference_calls))}
    found |= {f"edge_{name}": contents for name, contents in node_data(comparison.operators).items()}
    found |= {f"exported_{name}": contents for name, contents in exported_node_data(comparison.against_others).items()}
    for name, contents in found.items():
        yield f"{EXPLORED}/{name}.json", store.put_bytes(_json(contents))


def _json(contents: dict[str, Any]) -> bytes:
    return json.dumps(contents, allow_nan=False).encode()
