"""What a run made, under names a person would look for: hard links into the store, which cost no bytes.

Among them `evidence.parquet`, from which a cell is compared again without a device. What is drawn from them for other
tools lies beside: a trace for Perfetto, the graph and the numbers on its nodes for Model Explorer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from conf.schema import Request
from tasks.errors import EvidenceError
from tasks.model_explorer import edge_graph, exported_node_data, node_data
from tasks.outcome import CellResult
from tasks.perfetto import trace
from tasks.records import Blob, Measured
from tasks.storage.codec import decode, encode
from tasks.storage.store import Store, write_atomically

EVIDENCE = "evidence.parquet"
TRACE = "perfetto_trace.json"
EXPLORED = "model_explorer"


def lay_out(cells: Sequence[CellResult], folder: Path, store: Store) -> None:
    """`<folder>/<model>/<scheme>/<soc>/<backend>/<device>/program.pte` and its companions, for every lowered cell."""
    for cell in cells:
        here = _place(folder, cell.request)
        for name, blob in _files(cell):
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            _link(store.path(blob), here / name, store.partial)
        if cell.lowered is not None and cell.capture is not None:
            kept = encode(Measured(lowered=cell.lowered, capture=cell.capture))
            write_atomically(here / EVIDENCE, kept, partial=store.partial)
        for name, contents in _drawn(cell, store):
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            # In the store first: what a cell's graph and its gaps are is the same most nights.
            _link(store.path(store.put_bytes(_json(contents))), here / name, store.partial)
        if cell.comparison is not None and cell.comparison.profile:
            traced = trace(here.relative_to(folder).as_posix(), cell.comparison.profile)
            write_atomically(here / TRACE, _json(traced), partial=store.partial)


def evidence(folder: Path, request: Request) -> Measured | None:
    """What `lay_out` kept of a cell; None if it never came so far. Raises EvidenceError for a file that is damaged."""
    file = _place(folder, request) / EVIDENCE
    if not file.is_file():
        return None
    found = decode(file.read_bytes())
    if not isinstance(found, Measured):
        raise EvidenceError(f"{file} holds a {type(found).__name__}, not the evidence of a cell")
    return found


def _place(folder: Path, request: Request) -> Path:
    names = [request.model.name, request.scheme.name, request.soc.name, request.backend.name, request.where]
    return folder.joinpath(*map(_component, names))


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


def _drawn(cell: CellResult, store: Store) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and contents of what Model Explorer opens beside the exported program itself."""
    lowered, comparison = cell.lowered, cell.comparison
    if lowered is None or comparison is None:
        return
    inputs = lowered.quantized.exported.inputs
    yield f"{EXPLORED}/edge.json", edge_graph(lowered.operators, inputs, store.read(lowered.reference_calls))
    for name, contents in node_data(comparison.operators).items():
        yield f"{EXPLORED}/edge_{name}.json", contents
    for name, contents in exported_node_data(comparison.against_others).items():
        yield f"{EXPLORED}/exported_{name}.json", contents


def _json(contents: dict[str, Any]) -> bytes:
    return json.dumps(contents, allow_nan=False).encode()


def _link(blob: Path, name: Path, partial: Path) -> None:
    with suppress(FileExistsError):
        try:
            os.link(blob, name)
        except PermissionError:  # a file system without hard links
            write_atomically(name, blob.read_bytes(), partial=partial)
