"""What a run made, under names a person would look for: hard links into the store, which cost no bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from tasks.outcome import CellResult
from tasks.records import Blob
from tasks.storage.store import Store, write_atomically


def lay_out(cells: Sequence[CellResult], folder: Path, store: Store) -> None:
    """`<folder>/<model>/<scheme>/<soc>/<backend>/<device>/program.pte` and its companions, for every lowered cell."""
    for cell in cells:
        request = cell.request
        names = [request.model.name, request.scheme.name, request.soc.name, request.backend.name, request.device.name]
        here = folder.joinpath(*map(_component, names))
        for name, blob in _files(cell):
            here.mkdir(parents=True, exist_ok=True)
            _link(store.path(blob), here / name, store.partial)


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
