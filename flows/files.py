"""What a run made, under names a person would look for: hard links into the store, which cost no bytes.

Among them `evidence.parquet`, from which a cell is compared again without a device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from conf.schema import Request
from tasks.errors import EvidenceError
from tasks.outcome import CellResult
from tasks.records import Blob, Measured
from tasks.storage.codec import decode, encode
from tasks.storage.store import Store, write_atomically

EVIDENCE = "evidence.parquet"


def lay_out(cells: Sequence[CellResult], folder: Path, store: Store) -> None:
    """`<folder>/<model>/<scheme>/<soc>/<backend>/<device>/program.pte` and its companions, for every lowered cell."""
    for cell in cells:
        here = _place(folder, cell.request)
        for name, blob in _files(cell):
            here.mkdir(parents=True, exist_ok=True)
            _link(store.path(blob), here / name, store.partial)
        if cell.lowered is not None and cell.capture is not None:
            kept = encode(Measured(lowered=cell.lowered, capture=cell.capture))
            write_atomically(here / EVIDENCE, kept, partial=store.partial)


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


def _link(blob: Path, name: Path, partial: Path) -> None:
    with suppress(FileExistsError):
        try:
            os.link(blob, name)
        except PermissionError:  # a file system without hard links
            write_atomically(name, blob.read_bytes(), partial=partial)
