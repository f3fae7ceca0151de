"""The kinds of faults of hires.py: each disturbs a sweep with a hired device. The list is `KINDS`."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
from omegaconf import OmegaConf

from qnnsweep.conf.devices import DeviceConfig, TransportKind
from qnnsweep.tasks.devices import janitor
from qnnsweep.tasks.devices.farm import Farm
from qnnsweep.tasks.errors import DeviceError
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.storage.store import Store
from tests.devices.bench import WRITES, Bench, bundle_of
from tests.devices.cloud import Cloud
from tests.devices.test_lock import config_from
from tests.processes import eventually

PROGRAM = Path(__file__).with_name("hires.py")


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

    def run(self, cells: Sequence[str], *, meanwhile: Callable[[], object] = lambda: None) -> list[str]:
        """Run a sweep with these cells in this process, and return what `cell` returns for each.

        `meanwhile`: is called in a thread of its own.
        """
        farm = Farm(host_environment={}, folder=self.folder / "farm")
        thread = threading.Thread(target=meanwhile)
        thread.start()
        names = [cell(self.devices, code, self.bench.store, farm) for code in cells]
        self.needed_until_s = time.time()
        thread.join()
        return names

    def start(self, code: str) -> subprocess.Popen[bytes]:
        """Start a sweep with one cell in a process of its own."""
        texts = [OmegaConf.to_yaml(OmegaConf.structured(device)) for device in self.devices]
        order = json.dumps([str(self.bench.store.root), str(self.folder / "farm"), texts, code])
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), "--sweep", order], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def janitors(self) -> list[psutil.Process]:
        """Return the processes that keep the hired devices of this case."""
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
    use_board(case)

    def revoke() -> None:
        eventually(case.marker.exists, 60)
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.cwd().startswith(f"{case.place}/"):
                    for parent in process.parents():
                        if parent.name() == "sshd" and parent.ppid() != os.getpid():
                            parent.kill()
                            return

    return case.run([case.code("20 * (not seen)")], meanwhile=revoke)


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
        eventually(case.marker.exists, 60)
        time.sleep(wait)
        for process in case.janitors():
            process.kill()

    return case.run([case.code("1"), case.code()], meanwhile=kill)


def killed(case: Case, number: signal.Signals, *, with_janitor: bool = False) -> list[str]:
    at = case.chance.choice(["acquire", "runs"])
    wait = case.chance.uniform(0.0, 0.5)
    case.text = f"the sweep gets {number.name} {wait:.2f} s after {at}"
    case.text += ", and its janitor, too" if with_janitor else ""
    with case.start(case.code("1")) as process:
        eventually(case.marker.exists if at == "runs" else lambda: case.cloud.log, 60)
        time.sleep(wait)
        janitors = case.janitors() if with_janitor else []
        process.send_signal(number)
        for one in janitors:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()
    case.needed_until_s = time.time()
    return []


def use_board(case: Case) -> None:
    """Hire the board in this case: each of its connections has a process of its own, which can be ended."""
    case.place_here = case.bench.board.folder / case.folder.name
    case.place = str(case.place_here)
    case.device = own_folders(case.bench.over_ssh, case.place, case.place_here)


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
