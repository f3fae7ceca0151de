"""One side of sweep.py in a process of its own: programs of one model and scheme for several SoCs, from nothing.

python benchmarks/sweep_side.py {qnnsweep,whole,official} FOLDER OVERRIDE…
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from conf.load import load
from conf.schema import Request
from tasks.records import LoweredProgram

import official_path  # isort: skip


def main() -> None:
    began = time.monotonic()
    side, folder, *overrides = sys.argv[1:]
    requests = [cell.request for cell in load([*overrides, f"artifacts={folder}"]).cells]
    made: dict[str, Any] = {}
    for soc, found in SIDES[side](requests, Path(folder)):
        made[soc] = {"at_s": time.monotonic() - began} | found
    print(json.dumps({"seconds": time.monotonic() - began, "socs": made, "took": TOOK}))


TOOK: list[dict[str, Any]] = []


def qnnsweep(requests: list[Request], folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a sweep does of the model and scheme, for the shipping program alone."""
    yield from _swept(requests, folder, dump_operators=False)


def whole(requests: list[Request], folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """With the debug program, as a sweep does it."""
    yield from _swept(requests, folder, dump_operators=True)


def _swept(requests: list[Request], folder: Path, *, dump_operators: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    from flows.resources import prepare
    from tasks.export import export
    from tasks.lower import lower
    from tasks.quantize import quantize

    ask = requests[0]
    plan = load([f"artifacts={folder}"])
    resources = prepare(plan)
    tools: Any = {"store": resources.store, "workers": resources.workers}
    exported = export(ask.model, "", **tools)
    quantized = quantize(exported, ask.scheme, ask.backend.kind, **tools)

    def one(each: Request) -> LoweredProgram:
        return lower(quantized, each.scheme, each.backend.kind, each.soc, 1, dump_operators=dump_operators, **tools)

    with ThreadPoolExecutor(len(requests)) as pool:
        for each, lowered in zip(requests, pool.map(one, requests), strict=True):
            parts = lowered.operators, lowered.delegation, lowered.delegated_subgraphs, lowered.program
            yield each.soc.name, official_path.told(*parts, resources.store)
    TOOK.extend(asdict(each) for each in resources.workers.costs)


def official(requests: list[Request], folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Cell by cell, in one process that has imported ExecuTorch: torch.export, pt2e, the official call.

    It is a fork of the same server as the other side's: torch's convolutions differ in the last bit between that and a
    process started anew, and with them the scales that calibration finds.
    """
    from flows.resources import prepare

    resources = prepare(load([f"artifacts={folder}"]))
    workers = resources.workers
    yield from workers.call("official", official_path.cell_by_cell, requests, resources.store, time.time()).value


SIDES = {"qnnsweep": qnnsweep, "whole": whole, "official": official}

if __name__ == "__main__":
    main()
