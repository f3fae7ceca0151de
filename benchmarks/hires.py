"""A device that is hired from a farm, with one random fault at a time: is it always given back, and are the rows right?

    python benchmarks/hires.py --faults 1000
    python benchmarks/hires.py --only 17                            one fault again

The farm is a program of the tests. It hands out a real adbd or a real sshd of this machine. A fault happens to a sweep
of one or two cells. The sweep has the hired device; half of the sweeps have the local device, too. Then the next sweep
with the same artifacts runs, as on the next night, and must use the hired device. A fault is `lost` if a hire was not
given back within 60 seconds after it was last needed, if it was given back while a cell used it, if a cell has another
result than that of an undisturbed device, or none although a device was left, or if a process or a file remains. Run
it as root, after `.ci/machine`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from omegaconf import OmegaConf

from qnnsweep.conf.devices import DeviceConfig, TransportKind
from qnnsweep.tasks.devices import janitor
from qnnsweep.tasks.devices.farm import Farm
from qnnsweep.tasks.errors import DeviceError
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.storage.store import Store
from tests.devices.bench import WRITES, Bench, bundle_of, started_bench
from tests.devices.cloud import Cloud
from tests.devices.test_lock import config_from

LONGEST_S = 60.0
"""The longest time for which a device may be held after it was last needed."""


def waits(condition: Callable[[], object], seconds: float) -> bool:
    """Wait until a condition holds, and return whether it does."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def cell(devices: Sequence[DeviceConfig], code: str, store: Store, farm: Farm) -> str:
    """Measure a cell. Return the name of its device, its error, or what is wrong with it."""
    try:
        capture = measure(bundle_of(code, store), tuple(devices), None, store=store, farm=farm)
    except DeviceError as error:
        return f"DeviceError: {error}"
    is_right = store.read(capture.methods[0].outputs).endswith(bytes(8)) and len(capture.results) == 1
    return capture.device if is_right else f"wrong outputs of {capture.device}"


@dataclass(kw_only=True)
class Case:
    """One fault: the farm, the devices of the cells, and what is expected."""

    bench: Bench
    cloud: Cloud
    folder: Path
    chance: random.Random
    device: DeviceConfig
    """The device before it is hired."""
    place: str
    """The folder of the fault on the device."""
    place_here: Path
    """The same folder, by its name on this machine."""
    has_other: bool
    settings: dict[str, object] = field(default_factory=dict[str, object])
    """Of `device.lease`."""
    text: str = ""
    """The fault in words."""
    may_lack_device: bool = False
    may_end_early: bool = False
    """Whether the farm may give the device back while a cell uses it."""
    needed_until_s: float = 0.0

    @property
    def hired(self) -> DeviceConfig:
        return self.cloud.hired(self.device, **{"idle_s": 0.3, "release_s": 2.0, **self.settings})

    @property
    def devices(self) -> list[DeviceConfig]:
        here = replace(self.bench.here, work_folder=str(self.folder / "here" / "qnnsweep"), deadline_s=60)
        return [self.hired, here] if self.has_other else [self.hired]

    @property
    def left(self) -> list[Path]:
        folder = self.folder / "farm" / "hired"
        return [path for path in folder.iterdir() if path.suffix == ".json"] if folder.exists() else []

    @property
    def marker(self) -> Path:
        """A file that exists as soon as a cell runs on the hired device."""
        return self.place_here / "runs"

    def code(self, seconds: str = "0") -> str:
        """Return the code of a cell. On the hired device, it sleeps, and says from when to when it has run."""
        return f"""{WRITES}
import time
place = Path({self.place!r})
if Path.cwd().is_relative_to(place):
    began, seen = time.time(), (place / "runs").exists()
    (place / "runs").touch()
    time.sleep({seconds})
    with (place / "used").open("a") as used:
        used.write(f"{{began}} {{time.time()}}\\n")
"""

    def run(self, cells: Sequence[str]) -> list[str]:
        """Run a sweep with these cells in this process, and return what `cell` returns for each."""
        farm = Farm(host_environment={}, folder=self.folder / "farm")
        names = [cell(self.devices, code, self.bench.store, farm) for code in cells]
        self.needed_until_s = time.time()
        return names

    def start(self, code: str) -> subprocess.Popen[bytes]:
        """Start a sweep with one cell in a process of its own."""
        texts = [OmegaConf.to_yaml(OmegaConf.structured(device)) for device in self.devices]
        order = json.dumps([str(self.bench.store.root), str(self.folder / "farm"), texts, code])
        return subprocess.Popen(
            [sys.executable, __file__, "--sweep", order], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def janitors(self) -> list[psutil.Process]:
        """Return the janitors of this fault."""
        found: list[psutil.Process] = []
        for path in self.left:
            with suppress(OSError, ValueError, KeyError, psutil.Error):
                process = psutil.Process(int(json.loads(path.read_text())["pid"]))
                if janitor.__file__ in process.cmdline():
                    found.append(process)
        return found


def sweep_of(order: str) -> None:
    """Run the sweep of a process that may be killed."""
    root, folder, texts, code = json.loads(order)
    farm = Farm(host_environment={}, folder=Path(folder))
    cell([config_from(text) for text in texts], code, Store(Path(root)), farm)


def undisturbed(case: Case) -> list[str]:
    case.text = "none"
    case.settings = {"extend_every_s": 0.1}
    return case.run([case.code(), case.code()])


def late(case: Case) -> list[str]:
    case.text = "the farm does not answer in time"
    case.cloud.fail("acquire", "time.sleep(60)")
    case.settings, case.may_lack_device = {"acquire_s": 1.0}, True
    return case.run([case.code()])


def refused(case: Case) -> list[str]:
    code = case.chance.choice(
        [
            "sys.exit('quota: 0 minutes are left')",
            "os.kill(os.getpid(), 9)",
            "print('no JSON'); sys.exit()",
            "print('[' * 100000); sys.exit()",
            "sys.exit()",
            "print(endpoint); sys.exit(3)",
            "print(json.dumps({'serial': '-x'})); sys.exit()",
            "print(json.dumps({'ssh': '-oProxyCommand=x'})); sys.exit()",
            "os.write(1, bytes(range(256)) * 9000); sys.exit()",
        ]
    )
    case.text, case.may_lack_device = f"the farm gives no device: {code}", True
    case.cloud.fail("acquire", code)
    return case.run([case.code()])


def once_refused(case: Case) -> list[str]:
    case.text, case.may_lack_device = "the farm gives no device the first time", True
    case.cloud.fail("acquire", "sys.exit('try again')", once=True)
    return case.run([case.code(), case.code()])


def wrong_device(case: Case) -> list[str]:
    case.text, case.may_lack_device = "the farm names a device that does not exist", True
    right = case.device
    wrong = "root@127.0.0.1:1" if right.transport is TransportKind.ssh else "127.0.0.1:1"
    case.device = replace(right, address=wrong)
    names = case.run([case.code()])
    case.device = right
    return names


def revoked(case: Case) -> list[str]:
    case.text = "the farm ends the connection while a cell runs"
    case.device = on_board(case)

    def revoke() -> None:
        waits(case.marker.exists, 60)
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.cwd().startswith(f"{case.place}/"):
                    for parent in process.parents():
                        if parent.name() == "sshd" and parent.ppid() != os.getpid():
                            parent.kill()
                            return

    thread = threading.Thread(target=revoke)
    thread.start()
    names = case.run([case.code("20 * (not seen)")])
    thread.join()
    return names


def bad_release(case: Case) -> list[str]:
    code = case.chance.choice(["time.sleep(60)", "sys.exit(1)", "os.kill(os.getpid(), 9)"])
    case.text = f"the first release fails: {code}"
    case.cloud.fail("release", code, once=True)
    return case.run([case.code()])


def bad_extend(case: Case) -> list[str]:
    code = case.chance.choice(["time.sleep(60)", "sys.exit(1)"])
    case.text = f"each extension fails: {code}"
    case.settings = {"extend_every_s": 0.2}
    case.cloud.fail("extend", code)
    return case.run([case.code("1"), case.code()])


def budget(case: Case) -> list[str]:
    case.text, case.may_lack_device, case.may_end_early = "the budget of the run is used up", True, True
    case.settings = {"minutes": case.chance.uniform(0.005, 0.04), "idle_s": 20.0}
    return case.run([case.code(), case.code("1")])


def janitor_killed(case: Case) -> list[str]:
    case.text = "the janitor is killed"
    wait = case.chance.uniform(0.0, 1.0)

    def kill() -> None:
        waits(case.marker.exists, 60)
        time.sleep(wait)
        for process in case.janitors():
            process.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    names = case.run([case.code("1"), case.code()])
    thread.join()
    return names


def killed(case: Case, number: signal.Signals, *, with_janitor: bool = False) -> list[str]:
    at = case.chance.choice(["acquire", "runs"])
    wait = case.chance.uniform(0.0, 0.5)
    case.text = f"the sweep gets {number.name} {wait:.2f} s after {at}"
    case.text += ", and its janitor, too" if with_janitor else ""
    with case.start(case.code("1")) as process:
        waits(case.marker.exists if at == "runs" else lambda: case.cloud.log, 60)
        time.sleep(wait)
        janitors = case.janitors() if with_janitor else []
        process.send_signal(number)
        for one in janitors:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()
    case.needed_until_s = time.time()
    return []


def on_board(case: Case) -> DeviceConfig:
    """Let the case have the board, which has an sshd of its own per connection."""
    case.place_here = case.bench.board.folder / case.folder.name
    case.place = str(case.place_here)
    return own_folders(case.bench.over_ssh, case.place, case.place_here)


def own_folders(config: DeviceConfig, place: str, here: Path) -> DeviceConfig:
    """Return the configuration with a work folder and a lock of its own, because faults happen side by side."""
    (here / "lock").mkdir(parents=True, exist_ok=True)
    return replace(config, work_folder=f"{place}/qnnsweep", lock_folder=f"{place}/lock")


KINDS: dict[str, Callable[[Case], list[str]]] = {
    "undisturbed": undisturbed,
    "late": late,
    "refused": refused,
    "once refused": once_refused,
    "wrong device": wrong_device,
    "revoked": revoked,
    "bad release": bad_release,
    "bad extend": bad_extend,
    "budget": budget,
    "janitor killed": janitor_killed,
    "sweep killed": lambda case: killed(case, signal.SIGKILL),
    "sweep interrupted": lambda case: killed(case, signal.SIGINT),
    "sweep and janitor killed": lambda case: killed(case, signal.SIGKILL, with_janitor=True),
}


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

    waits(lambda: all(released_s(name) is not None for name in names) and not case.left, LONGEST_S)
    for name in sorted(names):
        if (at := released_s(name)) is None:
            found.append(f"{name} was not given back")
        elif at - case.needed_until_s > LONGEST_S:
            found.append(f"{name} was given back {at - case.needed_until_s:.0f} s late")
    found += [f"{path.name} remains" for path in case.left]
    if not waits(lambda: not _remaining(case), 20):
        found.append("a process remains")
    if not case.may_end_early and (early := _given_back_in_use(case)):
        found.append(early)
    return found


def _remaining(case: Case) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter()
        if str(case.folder) in " ".join(_words(process)) and process.pid != os.getpid()
    ]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


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
    first: list[str]
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
    first: list[str] = []
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
    return Ended(number=number, kind=kind, text=case.text, problems=found, first=first, seconds=seconds)


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
