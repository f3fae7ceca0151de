"""What a run made, under names a person would look for.

Among them `evidence.parquet`, from which a cell is compared again without a device. What is drawn from them for other
tools lies beside: a trace for Perfetto, the graph and the numbers on its nodes for Model Explorer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from conf.schema import Request
from flows.results import run_folder
from tasks.errors import EvidenceError
from tasks.model_explorer import edge_graph, exported_node_data, node_data
from tasks.outcome import CellResult
from tasks.perfetto import trace
from tasks.records import Blob, Measured
from tasks.storage.codec import decode, encode
from tasks.storage.store import Store

EVIDENCE = "evidence.parquet"
TRACE = "perfetto_trace.json"
EXPLORED = "model_explorer"


def lay_out(cells: Sequence[CellResult], run_id: str, store: Store) -> None:
    """`files/<model>/<scheme>/<soc>/<backend>/<device>/program.pte` and its companions, for every lowered cell."""
    for cell in cells:
        folder = f"{_folder(run_id)}/{_place(cell.request)}"
        if blobs := dict(_files(cell)) | dict(_drawn(cell, store)):
            store.lay_out(folder, blobs)
        if cell.lowered is not None and cell.capture is not None:
            store.files.write(f"{folder}/{EVIDENCE}", encode(Measured(lowered=cell.lowered, capture=cell.capture)))
        if cell.comparison is not None and cell.comparison.profile:
            traced = trace(_place(cell.request), cell.comparison.profile)
            store.files.write(f"{folder}/{TRACE}", _json(traced))


def evidence(run_id: str, request: Request, store: Store) -> Measured | None:
    """What `lay_out` kept of a cell; None if it never came so far. Raises EvidenceError for a file that is damaged."""
    name = f"{_folder(run_id)}/{_place(request)}/{EVIDENCE}"
    try:
        found = decode(store.files.read(name))
    except FileNotFoundError:
        return None
    if not isinstance(found, Measured):
        raise EvidenceError(f"{store.shown(name)} holds a {type(found).__name__}, not the evidence of a cell")
    return found


def _folder(run_id: str) -> str:
    return f"{run_folder(run_id)}/files"


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


def _drawn(cell: CellResult, store: Store) -> Iterator[tuple[str, Blob]]:
    """What Model Explorer opens beside the exported program itself.

    In the store: what a cell's graph and its gaps are is the same most nights.
    """
    lowered, comparison = cell.lowered, cell.comparison
    if lowered is None or comparison is None:
        return
    inputs = lowered.quantized.exported.inputs
    found = {"edge": edge_graph(lowered.operators, inputs, store.read(lowered.reference_calls))}
    found |= {f"edge_{name}": contents for name, contents in node_data(comparison.operators).items()}
    found |= {f"exported_{name}": contents for name, contents in exported_node_data(comparison.against_others).items()}
    for name, contents in found.items():
        yield f"{EXPLORED}/{name}.json", store.put_bytes(_json(contents))


def _json(contents: dict[str, Any]) -> bytes:
    return json.dumps(contents, allow_nan=False).encode()
