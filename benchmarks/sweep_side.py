"""One side of sweep.py in a process of its own: programs of one model and scheme for several SoCs, from nothing.

python benchmarks/sweep_side.py {qnnsweep,whole,official} FOLDER OVERRIDE…
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from conf.load import load
from conf.schema import Request
from tasks.records import Blob, DelegationCount, LoweredProgram, Operator
from tasks.storage.digest import digest
from tasks.storage.store import Store


def main() -> None:
    began = time.monotonic()
    side, folder, *overrides = sys.argv[1:]
    requests = [cell.request for cell in load([*overrides, f"artifacts={folder}"]).cells]
    made: dict[str, Any] = {}
    for soc, found in SIDES[side](requests, Path(folder)):
        made[soc] = found | {"at_s": time.monotonic() - began}
    print(json.dumps({"seconds": time.monotonic() - began, "socs": made, "took": TOOK}))


TOOK: list[dict[str, Any]] = []


def qnnsweep(requests: list[Request], folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a sweep does of the model and scheme, for the shipping program alone."""
    yield from _swept(requests, folder, dump_operators=False)


def whole(requests: list[Request], folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """With the debug program, as a sweep does it."""
    yield from _swept(requests, folder, dump_operators=True)


def _swept(requests: list[Request], folder: Path, *, dump_operators: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    from flows.sweep import prepare
    from tasks.export import export
    from tasks.lower import lower
    from tasks.quantize import quantize

    ask = requests[0]
    plan = load([f"artifacts={folder}"])
    means = prepare(plan)
    tools: Any = {"store": means.store, "children": means.children}
    exported = export(ask.model, "", **tools)
    quantized = quantize(exported, ask.scheme, ask.backend.kind, **tools)

    def one(each: Request) -> LoweredProgram:
        return lower(quantized, each.scheme, each.backend.kind, each.soc, 1, dump_operators=dump_operators, **tools)

    with ThreadPoolExecutor(len(requests)) as pool:
        for each, lowered in zip(requests, pool.map(one, requests), strict=True):
            yield (
                each.soc.name,
                _told(lowered.operators, lowered.delegation, lowered.delegated_subgraphs, lowered.program, means.store),
            )
    TOOK.extend(asdict(each) for each in means.children.took)


def official(requests: list[Request], folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Cell by cell, in one process that imports ExecuTorch once: torch.export, pt2e, the official call."""
    import official_path

    from tasks.toolchain.eager import export_model

    store = Store.open(folder)
    for each in requests:
        exported = export_model(each.model, store)
        found = official_path.build(exported, each.scheme, each.soc, store)
        yield (
            each.soc.name,
            _told(found.operators, found.delegation, found.delegated_subgraphs, found.program, store),
        )


def _told(
    operators: tuple[Operator, ...],
    delegation: tuple[DelegationCount, ...],
    subgraphs: int,
    program: Blob,
    store: Store,
) -> dict[str, Any]:
    """What both sides must agree on, and where the program is."""
    return {
        "operators": digest([replace(row, subgraph=None) for row in operators]),
        "delegation": digest([replace(row, refusals=()) for row in delegation]),
        "subgraphs": subgraphs,
        "bytes": program.size,
        "program": str(store.path(program)),
    }


SIDES = {"qnnsweep": qnnsweep, "whole": whole, "official": official}

if __name__ == "__main__":
    main()
