"""A device that is hired from a farm, with one random fault at a time: is it always given back, and are the rows right?

    python benchmarks/hires.py --faults 1000
    python benchmarks/hires.py --only 17                            one fault again

The kinds of faults are in hire_kinds.py. The farm is a program of the tests. It hands out a real adbd or a real sshd of
this machine. A fault happens to a sweep of one or two cells. The sweep has the hired device; half of the sweeps have
the local device, too. Then the next sweep with the same artifacts runs, as on the next night, and must use the hired
device. A fault is `lost` if a hire was not given back within 60 seconds after it was last needed, if it was given back
while a cell used it, if a cell has another result than that of an undisturbed device, or none although a device was
left, or if a process or a file remains. Run it as root, after `.ci/machine`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from hire_kinds import KINDS, Case, own_folders, sweep_of

from tests.devices.bench import Bench, started_bench
from tests.devices.cloud import Cloud
from tests.processes import eventually

LONGEST_S = 60.0
"""The longest time for which a device may be held after it was last needed."""


def problems(case: Case, first: Sequence[str], then: Sequence[str]) -> list[str]:
    """Return what is wrong after a fault. `first`, `then`: the results of the disturbed and of the next sweep."""
    found: list[str] = []
    for name in first:
        is_reported = name.startswith("DeviceError: ") and case.may_lack_device and not case.has_other
        if name not in {case.device.name, *(["here"] if case.has_other else [])} and not is_reported:
            found.append(f"the disturbed sweep: {name}")
    if list(then) != [case.device.name]:
        found.append(f"the next sweep: {then}")
    names = {entry.name for entry in case.cloud.log}

    def released_s(name: str) -> float | None:
        times = (entry.time_s for entry in case.cloud.log if (entry.name, entry.word) == (name, "released"))
        return min(times, default=None)

    eventually(lambda: all(released_s(name) is not None for name in names) and not case.left, LONGEST_S)
    for name in sorted(names):
        if (at := released_s(name)) is None:
            found.append(f"{name} was not given back")
        elif at - case.needed_until_s > LONGEST_S:
            found.append(f"{name} was given back {at - case.needed_until_s:.0f} s late")
    found += [f"{path.name} remains" for path in case.left]
    if not eventually(lambda: not _has_process(case), 20):
        found.append("a process remains")
    if not case.may_end_early and (early := _given_back_in_use(case)):
        found.append(early)
    return found


def _has_process(case: Case) -> bool:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(case.folder) in " ".join(process.cmdline()) and process.pid != os.getpid():
                return True
    return False


def _given_back_in_use(case: Case) -> str:
    """Return which hire was given back while a cell ran; empty if none was. A cell says so in a file of its own."""
    used = case.place_here / "used"
    for line in used.read_text().splitlines() if used.exists() else ():
        began, ended = map(float, line.split())
        for entry in case.cloud.log:
            if entry.word == "release" and began < entry.time_s < ended:
                return f"{entry.name} was given back while a cell used it"
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A fault and its end."""

    number: int
    kind: str
    text: str
    problems: list[str]
    seconds: float


def run_fault(bench: Bench, number: int, kinds: Sequence[str]) -> Ended:
    chance = random.Random(number)  # noqa: S311 - no secret
    kind, began = chance.choice(list(kinds)), time.monotonic()
    folder = bench.folder / f"fault-{number}"
    folder.mkdir()
    is_phone, has_other = chance.random() < 0.5, chance.random() < 0.5
    here = (bench.phone.data if is_phone else bench.board.folder) / folder.name
    place = f"/data/{folder.name}" if is_phone else str(here)
    device = own_folders(bench.over_adb if is_phone else bench.over_ssh, place, here)
    case = Case(
        bench=bench, cloud=Cloud(folder / "cloud").start(), folder=folder, chance=chance, device=device,
        place=place, place_here=here, has_other=has_other,
    )  # fmt: skip
    try:
        first = KINDS[kind](case)
        for verb in ("acquire", "extend", "release", "once"):
            (case.cloud.folder / verb).unlink(missing_ok=True)
        case.settings = {}
        found = problems(case, first, case.run([case.code()]))
    except Exception as error:  # noqa: BLE001 - it is counted and printed
        found = [f"{type(error).__name__}: {error}"]
    if not found:
        for path in (folder, here, case.place_here):
            shutil.rmtree(path, ignore_errors=True)
    seconds = time.monotonic() - began
    return Ended(number=number, kind=kind, text=case.text, problems=found, seconds=seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100, metavar="N")
    parser.add_argument("--only", type=int, metavar="NUMBER")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=6)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--sweep", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sweep:
        sweep_of(options.sweep)
        return 0
    first = options.seed * 1_000_000
    numbers = [options.only] if options.only is not None else range(first, first + options.faults)
    ended: list[Ended] = []
    with (
        tempfile.TemporaryDirectory(prefix="hires-", ignore_cleanup_errors=True) as folder,
        started_bench(Path(folder)) as bench,
        ThreadPoolExecutor(options.threads) as threads,
    ):
        for case in threads.map(lambda number: run_fault(bench, number, options.kinds), numbers):
            ended.append(case)
            word = "lost" if case.problems else "survived"
            print(f"{case.number} {case.kind}: {word} in {case.seconds:.1f} s ({case.text})", flush=True)
            for problem in case.problems:
                print(f"    {problem}", flush=True)
    lost = Counter(case.kind for case in ended if case.problems)
    print(f"\n{len(ended)} faults, {lost.total()} lost")
    for kind, count in sorted(Counter(case.kind for case in ended).items()):
        print(f"  {kind:28}{count:5} {lost[kind]:5} lost")
    if options.json:
        print(json.dumps({"faults": len(ended), "lost": lost.total()}))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
