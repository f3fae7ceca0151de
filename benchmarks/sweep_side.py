"""One side of sweep.py, run in a separate process: it compiles one model and scheme for several SoCs, from nothing.

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

from qnnsweep.conf.load import load
from qnnsweep.conf.schema import Request
from qnnsweep.tasks.records import LoweredProgram

import official_path  # isort: skip


def main() -> None:
    start = time.monotonic()
    side, folder, *overrides = sys.argv[1:]
    requests = [cell.request for cell in load([*overrides, f"artifacts={folder}"]).cells]
    programs: dict[str, Any] = {}
    for soc, facts in SIDES[side](requests, Path(folder)):
        programs[soc] = {"at_s": time.monotonic() - start} | facts
    print(json.dumps({"seconds": time.monotonic() - start, "socs": programs, "took": TOOK}))


TOOK: list[dict[str, Any]] = []


def qnnsweep(requests: list[Request], folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Do what a sweep does, without the debug program."""
    yield from _swept(requests, folder, dump_operators=False)


def whole(requests: list[Request], folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Do what a sweep does, including the debug program."""
    yield from _swept(requests, folder, dump_operators=True)


def _swept(requests: list[Request], folder: Path, *, dump_operators: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    from qnnsweep.flows.cells.graph import lowering_options
    from qnnsweep.flows.cells.resources import prepare
    from qnnsweep.tasks.export import export
    from qnnsweep.tasks.lower import lower
    from qnnsweep.tasks.quantize import quantize

    ask = requests[0]
    plan = load([f"artifacts={folder}"])
    resources = prepare(plan)
    tools: Any = {"store": resources.store, "workers": resources.workers}
    exported = export(ask.model, "", **tools)
    quantized = quantize(exported, ask.scheme, ask.backend.kind, **tools)

    def lowered_for(request: Request) -> LoweredProgram:
        options = replace(lowering_options(request), operator_samples=1, dump_operators=dump_operators)
        return lower(quantized, request.soc, options, **tools)

    with ThreadPoolExecutor(len(requests)) as pool:
        for request, lowered in zip(requests, pool.map(lowered_for, requests), strict=True):
            (method,) = lowered.methods
            parts = method.operators, method.delegation, method.delegated_subgraphs, lowered.program
            yield request.soc.name, official_path.program_facts(*parts, resources.store)
    TOOK.extend(asdict(cost) for cost in resources.workers.costs)


def official(requests: list[Request], folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Compile cell by cell, in one process that has imported ExecuTorch: torch.export, pt2e, official lowering.

    As on the other side, the process is forked from a fork server. In a new process, torch's convolutions would differ
    in the last bit, and therefore also the scales from calibration.
    """
    from qnnsweep.flows.cells.resources import prepare

    resources = prepare(load([f"artifacts={folder}"]))
    workers = resources.workers
    yield from workers.call("official", official_path.cell_by_cell, requests, resources.store, time.time()).value


SIDES = {"qnnsweep": qnnsweep, "whole": whole, "official": official}

if __name__ == "__main__":
    main()
