"""What a run made, under names a person would look for.

Among them `evidence.parquet`, from which a cell is compared again without a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

from conf.schema import Request
from flows.results import run_folder
from tasks.errors import EvidenceError
from tasks.outcome import CellResult
from tasks.records import Blob, Measured
from tasks.storage.codec import decode, encode
from tasks.storage.store import Store

EVIDENCE = "evidence.parquet"


def lay_out(cells: Sequence[CellResult], run_id: str, store: Store) -> None:
    """`files/<model>/<scheme>/<soc>/<backend>/<device>/program.pte` and its companions, for every lowered cell."""
    for cell in cells:
        folder = f"{_folder(run_id)}/{_place(cell.request)}"
        if blobs := dict(_files(cell)):
            store.lay_out(folder, blobs)
        if cell.lowered is not None and cell.capture is not None:
            store.files.write(f"{folder}/{EVIDENCE}", encode(Measured(lowered=cell.lowered, capture=cell.capture)))


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
