"""A sweep that is disturbed by one random fault at a time, and then run again with the same command.

    python benchmarks/faults.py --faults 1000 --plot faults.svg
    python benchmarks/faults.py --only 17                           one fault again; its moment is about the same

The kinds of faults are in fault_kinds.py. A case begins with a copy of the artifacts of an undisturbed sweep, from
which the results of some stages are removed. After the fault, the run must have the tables of the undisturbed run
(times are not compared), or the row of the cell must say what is missing. A disturbed run may also end with one line
that says what the machine lacks. Everything else is `lost`: other rows, an error without a row, a command that does
not end, a process or a file that remains. After Ctrl-C or SIGTERM no further fault starts; the faults that run end
first, and then the table of all faults is printed. Run it as root, after `.ci/machine`: it mounts small disks and
starts an sshd.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from depth_plot import Series, svg
from fault_kinds import BUCKET, KINDS, SECONDS, Bench, Case
from fault_sweep import Sweep, judge
from warm_start import WarmProgram, WarmProgramEnded

from tests.flows.cluster import client_environment, prefect_server
from tests.flows.kill_and_rerun import Tables
from tests.flows.sweep_outputs import assert_no_leftovers
from tests.object_store import ObjectStore, serve_object_store
from tests.program import program_at

PER_SEED = 1_000_000
"""The difference between the numbers of the first faults of two seeds."""
POINTS = 10
"""The number of points of the curve."""


Word = Literal["equal", "reported", "lost"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Survived:
    """One fault and its end."""

    number: int
    kind: str
    fault: str
    word: Word
    text: str
    disturbed: str
    """What the disturbed run said; empty for a fault at rest."""
    heals: bool
    """Whether a further run has the tables of the undisturbed run."""
    seconds: float


def run_fault(bench: Bench, number: int, kinds: Sequence[str]) -> Survived:
    """Disturb one sweep and run it again. `number`: the seed of the fault."""
    chance = random.Random(number)  # noqa: S311 - no secret
    (kind,) = chance.choices(kinds, [KINDS[name][1] for name in kinds])
    started, fault, disturbed = time.monotonic(), "", ""
    folder = bench.folder / f"case-{number}"
    folder.mkdir()
    with ExitStack() as stack:
        case = Case(bench=bench, sweep=bench.new_sweep(folder), expected=bench.expected, stack=stack)
        word: Word = "lost"
        text, heals = "", False
        try:
            fault = KINDS[kind][0](case, chance)
            if case.disturbed is not None and not case.is_killed:
                first = judge(case.disturbed, case.sweep, case.expected)
                disturbed = f"{first.word} {first.text}".strip()
                if first.word == "lost":
                    raise AssertionError(f"the disturbed run: {first.text}")
            word, text = _ended(case)
            heals = word == "equal" or _ended(case)[0] == "equal"
            if case.sweep.url is None and word == "equal":
                if case.may_leave_lease and list(case.sweep.leases.iterdir()):
                    case.sweep.remove_results("measure")
                    word, text = _ended(case)
                assert_no_leftovers(case.sweep.artifacts)
        except WarmProgramEnded:
            raise
        except Exception as error:  # noqa: BLE001 - it is counted and printed
            word, text, fault = "lost", f"{type(error).__name__}: {error}", fault or case.fault
    if word != "lost":
        shutil.rmtree(folder, ignore_errors=True)
    seconds = time.monotonic() - started
    return Survived(
        number=number, kind=kind, fault=fault, word=word, text=text, disturbed=disturbed, heals=heals, seconds=seconds
    )


def _ended(case: Case) -> tuple[Word, str]:
    """Run the command. Return how it ended, and what it said. Nothing disturbs it, so that a refusal is `lost`."""
    last = judge(case.sweep.run(), case.sweep, case.expected)
    return "lost" if last.word == "refused" else last.word, last.text


def run_faults(
    numbers: Sequence[int],
    kinds: Sequence[str],
    threads: int,
    show: Callable[[Survived], None],
    until: float,
    stopped: threading.Event,
) -> list[Survived]:
    """Run every fault, and call `show` with its end.

    No fault starts after `until`, by the monotonic clock, or after `stopped` is set.
    """
    survived: list[Survived] = []
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in numbers:
        waiting.put(number)
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True)))
        new_bench = prepare(root, kinds, stack)

        def work(bench: Bench) -> None:
            while time.monotonic() < until and not stopped.is_set():
                try:
                    number = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    survived.append(run_fault(bench, number, kinds))
                except WarmProgramEnded:
                    print(f"{number} and later: a process of the benchmark itself was killed", flush=True)
                    return
                show(survived[-1])

        with ThreadPoolExecutor(
            threads
        ) as pool:  # each process that imports takes seconds, or minutes under other load
            benches = list(pool.map(lambda _: new_bench(), range(threads)))
        running = [threading.Thread(target=work, args=(bench,)) for bench in benches]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    return survived


def prepare(root: Path, kinds: Sequence[str], stack: ExitStack) -> Callable[[], Bench]:
    """Start the servers, run the undisturbed sweep, and return a function that creates a bench for a thread."""
    prefect_home = root / "home" / "prefect"
    prefect_home.mkdir(parents=True)
    server = stack.enter_context(prefect_server(prefect_home, root / "server.log"))
    environment = program_at(root / "home", root).environment | client_environment(server)
    links = root / "links"
    links.mkdir()
    store: ObjectStore | None = None
    if "failing store" in kinds:
        store = stack.enter_context(serve_object_store(root))
        store.create_bucket(BUCKET)
        os.environ.update(store.environment)

    def warm_program() -> WarmProgram:
        warm = WarmProgram(environment, links)
        stack.callback(warm.close)
        return warm

    prepared, expected, seconds = _undisturbed(warm_program(), root)

    def new_bench() -> Bench:
        warm, folder = warm_program(), Path(tempfile.mkdtemp(dir=root))
        return Bench(
            folder=folder,
            prepared=prepared,
            expected=expected,
            new_sweep=lambda working: Sweep(warm=warm, folder=working),
            stack=stack,
            object_store=store,
            slowness=max(1.0, seconds / SECONDS["everything"]),
        )

    return new_bench


def _undisturbed(warm: WarmProgram, root: Path) -> tuple[Path, Tables, float]:
    """Run the sweep. Return its artifacts, its tables and its duration."""
    folder = root / "undisturbed"
    folder.mkdir()
    sweep = Sweep(warm=warm, folder=folder)
    ran = sweep.run()
    assert ran.exit_code == 0, ran.err
    assert ran.run_id is not None, ran.out
    return sweep.artifacts, sweep.tables(ran.run_id), ran.seconds


def curve(words: Sequence[str]) -> str:
    """Return a chart of the shares of faults that were survived, in the order of their ends."""
    checkpoints = sorted({max(1, round(len(words) * point / POINTS)) for point in range(1, POINTS + 1)})
    counts = [Counter(words[:faults]) for faults in checkpoints]

    def share(*names: str) -> list[float]:
        return [100 * sum(count[name] for name in names) / sum(count.values()) for count in counts]

    lines = [Series("survived", checkpoints, share("equal", "reported")), Series("equal", checkpoints, share("equal"))]
    return svg([*lines, Series("lost", checkpoints, share("lost"))], x="faults", y="share of the faults, %")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one fault")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--threads", type=int, default=3, help="how many sweeps run at the same time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no fault after this time")
    parser.add_argument("--plot", type=Path, help="the file for a chart of the faults survived")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line")
    options = parser.parse_args()
    first = options.seed * PER_SEED
    numbers = range(first, first + options.faults) if options.only is None else [options.only]
    counted: list[Survived] = []

    def show(case: Survived) -> None:
        counted.append(case)
        so_far = sum(other.word != "lost" for other in counted)
        print(f"{so_far} of {len(counted)}  {case.number} {case.kind}: {case.fault}; {case.seconds:.0f} s", flush=True)
        heals = "" if case.heals or case.word == "lost" else " (and again by a further run)"
        print(f"    {case.word}{heals} {case.text}", flush=True)
        if case.disturbed:
            print(f"    disturbed run: {case.disturbed[:300]}", flush=True)

    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    threads = min(options.threads, len(numbers))
    survived = run_faults(numbers, options.kinds, threads, show, time.monotonic() + 60 * options.minutes, stopped)
    words = Counter(case.word for case in survived)
    print(f"\n{len(survived)} faults: {words['equal']} equal, {words['reported']} reported, {words['lost']} lost")
    for kind in options.kinds:
        of_kind = Counter(case.word for case in survived if case.kind == kind)
        print(f"  {kind:34}" + ", ".join(f"{word} {of_kind[word]}" for word in ("equal", "reported", "lost")))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{(used.ru_utime + used.ru_stime) / max(len(survived), 1):.1f} s of processor time per fault")
    if options.plot:
        options.plot.write_text(curve([case.word for case in survived]))
    if options.json:
        lost = [asdict(case) for case in survived if case.word == "lost"]
        print(json.dumps({"faults": len(survived), **words, "lost": words["lost"], "lost_faults": lost}))
    return 0 if words["lost"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
