"""Mutated files: whether reading them crashes, takes long, takes much memory, or gives other rows without an error.

The mutated files are etdumps, debug buffers, programs, records, key files, blobs and tables. The readers, and the
outcomes that are counted, are in mutated.py. Four outcomes are failures, and each is printed with its kind and number:
a crash of the process, a reading that takes more than 2 s or more than 500 MB, an error that no caller expects, and the
outcome `different`. The time is that of the processor, because other processes may use the same cores; a process that
does not answer for a minute hangs. `--kinds KIND --only NUMBER` repeats one mutation.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))

import psutil
from mutated import READERS, Material, Reader

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

ReadersOf = Callable[[Material], dict[str, Reader]]
SHARES: Mapping[str, float] = {
    "etdump": 0.22,
    "debug buffer": 0.06,
    "program": 0.10,
    "diff of programs": 0.02,
    "record": 0.16,
    "key file": 0.10,
    "blob": 0.10,
    "table": 0.16,
    "comparison of damaged files": 0.06,
    "comparison of other captures": 0.02,
}
"""By kind, its share of the mutations."""
MUCH_S, MUCH_BYTES, HANGS_S = 2.0, 500_000_000, 60.0
CHUNK = 2500
"""The number of mutations after which a new process starts."""
CELL = ("model=digits_cnn", "scheme=8a8w", "soc=SM8650", "model.calibration.count=32", "model.evaluation.count=8",
        "measure.operator_samples=2")  # fmt: skip
_INTEGERS = (0, 1, 2, 3, 4, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)


@dataclass(kw_only=True, slots=True)
class Counts:
    """What became of the mutations of one kind."""

    outcomes: Counter[str] = field(default_factory=Counter[str])
    most_s: float = 0.0
    most_bytes: int = 0
    failures: list[str] = field(default_factory=list[str])

    @property
    def mutations(self) -> int:
        return sum(self.outcomes.values())

    def as_json(self) -> dict[str, Any]:
        largest = {"most_s": self.most_s, "most_bytes": self.most_bytes}
        return {"mutations": self.mutations, **self.outcomes, **largest, "failures": self.failures}

    def add(self, number: int, outcome: str, seconds: float, size: int) -> None:
        problem = None if outcome in ("equal", "refused", "read") else outcome
        if seconds > MUCH_S:
            problem = f"{outcome} after {seconds:.1f} s"
            self.outcomes["over 2 s"] += 1
        elif size > MUCH_BYTES:
            problem = f"{outcome} with {size / 1e6:.0f} MB"
            self.outcomes["over 500 MB"] += 1
        else:
            self.outcomes[outcome.partition(":")[0]] += 1
        if problem is not None:
            self.failures.append(f"number {number}: {problem}")
        self.most_s, self.most_bytes = max(self.most_s, seconds), max(self.most_bytes, size)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return `data` with one to fifty mutations: bits, bytes, integers, pieces removed, inserted, moved or zeroed."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 5, 8, 20, 50))):
        if not changed:
            return bytes(changed)
        # The beginning of a file, which says what the rest is, is hit more often.
        start = chance.randrange(min(64, len(changed))) if chance.random() < 0.3 else chance.randrange(len(changed))
        match chance.randrange(9):
            case 0:
                changed[start] ^= 1 << chance.randrange(8)
            case 1:
                changed[start] = chance.randrange(256)
            case 2:
                size = chance.choice((1, 2, 4, 8))
                value = chance.choice(_INTEGERS) % 2 ** (8 * size)
                start -= start % size
                changed[start : start + size] = value.to_bytes(size, "little")
            case 3:
                del changed[start : start + chance.choice((1, 2, 4, 8, 64, 1024))]
            case 4:
                changed[start:start] = chance.randbytes(chance.choice((1, 2, 4, 8, 64)))
            case 5:
                del changed[start:]
            case 6:
                size, source = chance.choice((4, 8, 16, 64, 256)), chance.randrange(len(changed))
                changed[start : start + size] = changed[source : source + size]
            case 7:
                size = chance.choice((4, 8, 32))
                changed[start : start + size] = bytes(size)
            case _:
                start -= start % 4
                value = int.from_bytes(changed[start : start + 4], "little")
                value = (value + chance.choice((-8, -4, -1, 1, 4, 8, 2**31))) % 2**32
                changed[start : start + 4] = value.to_bytes(4, "little")
    return bytes(changed)


def run_chunk(
    material: Material, kind: str, numbers: Sequence[int], seed: int, readers_of: ReadersOf, results: Connection
) -> None:
    """Read mutated files in a process of its own, and send the number, the outcome, the time and the memory of each."""
    readers = sorted(readers_of(material).items())
    results.send(None)
    for number in numbers:
        chance = random.Random(f"{seed} {kind} {number}")  # noqa: S311 - no secret
        name, reader = chance.choice(readers)
        data = mutated(reader.data, chance)
        before, started = _reset_peak(), time.process_time()
        try:
            outcome: str = reader.read(data)
        except Exception as error:  # noqa: BLE001 - it is counted
            outcome = f"unexpected: {type(error).__name__} of {name}: {str(error)[:200]}"
        results.send((number, outcome, time.process_time() - started, _peak_bytes() - before))
    results.send(None)


def mutate(
    material: Material, kind: str, numbers: Sequence[int], seed: int, readers_of: ReadersOf | None = None
) -> Counts:
    """Mutate files of one kind in worker processes. After a crash, a new worker continues with the next mutation.

    `readers_of`: the function that returns the readers in the worker, by default that of the kind in `READERS`.
    """
    counts = Counts()
    remaining = list(numbers)
    while remaining:
        results = _results(material, kind, remaining[:CHUNK], seed, readers_of or READERS[kind])
        for number, outcome, seconds, size in results:
            counts.add(number, outcome, seconds, size)
            remaining.remove(number)
    return counts


def _results(
    material: Material, kind: str, numbers: Sequence[int], seed: int, readers_of: ReadersOf
) -> Iterator[tuple[int, str, float, int]]:
    context = multiprocessing.get_context("spawn")
    results, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "store")
        shutil.copytree(material.root, root)
        copied = Material(root=root, run_id=material.run_id, options=material.options)
        worker = context.Process(target=run_chunk, args=(copied, kind, numbers, seed, readers_of, sender))
        worker.start()
        sender.close()
        results.recv()  # the worker has imported what it needs, and has read the undamaged files
        answered = 0
        with suppress(EOFError):
            while _arrives(results) and (result := results.recv()) is not None:
                answered += 1
                yield result
        if answered < len(numbers):
            worker.join(1)
            outcome = "hang" if worker.is_alive() else f"crash: exit code {worker.exitcode}"
            worker.kill()
            yield numbers[answered], outcome, HANGS_S if outcome == "hang" else 0.0, 0
        worker.join()


def _arrives(results: Connection) -> bool:
    """Return whether a result arrives within `HANGS_S`. A machine that stood still for a while counts as one second."""
    return any(results.poll(1.0) for _ in range(int(HANGS_S)))


def _reset_peak() -> int:
    """Set the peak of this process's resident memory to the present size, and return it in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return psutil.Process().memory_info().rss


def _peak_bytes() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def create_material(artifacts: str, root: Path) -> Material:
    """Return the material of a cell that was measured below `artifacts`. Without such a cell, a sweep measures it."""
    from cells import cell

    from qnnsweep.tasks.numerics.verdict import of_scheme
    from qnnsweep.tasks.records.options import ComparisonOptions
    from qnnsweep.tasks.storage import tables

    request, resources, evidence = cell(artifacts, *CELL)
    run_id = tables.runs(resources.store)[-1]
    rows = {table: tables.rows(resources.store, table, run_id) for table in tables.TABLES}
    options = ComparisonOptions(classifier=True, tolerances=of_scheme(request.tolerance.operators, request.scheme.name))
    return Material.create(root, evidence.lowered, evidence.capture, resources.store, rows, options)


def show(kind: str, counts: Counts) -> None:
    outcomes = ", ".join(f"{name} {count}" for name, count in sorted(counts.outcomes.items()))
    print(f"{kind:30}{outcomes}; at most {counts.most_s:.2f} s and {counts.most_bytes / 1e6:.0f} MB", flush=True)
    for failure in counts.failures:
        print(f"  {failure}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=50_000, help="of all kinds together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=list(SHARES), choices=list(SHARES))
    parser.add_argument("--only", type=int, help="the number of one mutation of the kinds")
    parser.add_argument("--artifacts", default="artifacts", help="where the run of the cell is, or is created")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args()
    table: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        material = create_material(options.artifacts, Path(folder))
        for kind in options.kinds:
            count = round(SHARES[kind] * options.mutations)
            counts = mutate(material, kind, range(count) if options.only is None else [options.only], options.seed)
            show(kind, counts)
            table[kind] = counts.as_json()
    failures = sum(len(counts["failures"]) for counts in table.values())
    print(f"{sum(counts['mutations'] for counts in table.values())} mutations, {failures} failures")
    if options.json:
        print(json.dumps({"failures": failures, "kinds": table}))
    return 0 if failures == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
