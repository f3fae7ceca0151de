"""The kinds of faults of benchmarks/faults.py: each is a function that disturbs one case of a bench by chance.

A fault at rest damages files before the command runs. Every other fault disturbs a run of the command, and is over when
this run has ended; the command then runs again. The functions return a description of the fault.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from fault_sweep import FirstStage, Ran, Sweep, copied, judge
from faulty_store import STORE_FAULTS, FaultyStore
from pyarrow import fs

from tests.devices.loopback import Sshd, running, write_farm
from tests.flows.kill_and_rerun import Tables
from tests.object_store import ObjectStore
from tests.processes import command_of

SMALL_DISK_BYTES = 160 << 20
DAY_S = 86_400
BUCKET = "faults"
WORKS: Mapping[FirstStage, float] = {
    "nothing": 0.35,
    "compare": 0.25,
    "measure": 0.25,
    "lower": 0.1,
    "everything": 0.05,
}
"""By the first stage without a result, how often a fault disturbs such a run."""
SECONDS: Mapping[FirstStage, float] = {
    "nothing": 2.0,
    "compare": 15.0,
    "measure": 25.0,
    "lower": 35.0,
    "everything": 60.0,
}
"""By the first stage without a result, the duration of a run on a machine without other load."""


@dataclass(kw_only=True)
class Bench:
    """What the cases of one thread share."""

    folder: Path
    prepared: Path
    """The artifacts folder of an undisturbed run."""
    expected: Tables
    """The tables of the undisturbed run."""
    new_sweep: Callable[[Path], Sweep]
    stack: ExitStack
    object_store: ObjectStore | None = None
    slowness: float = 1.0
    """How many times as long a run takes as on a machine without other load."""
    _board: tuple[Sshd, Path, Tables] | None = None
    _proxy: FaultyStore | None = None
    _clock: Path | None = None

    def board(self) -> tuple[Sshd, Path, Tables]:
        """Return a device with the artifacts and the tables of an undisturbed run on it."""
        if self._board is None:
            device = Sshd(folder=self.folder / "board")
            self.stack.enter_context(running(device))
            write_farm(self.folder / "conf", [], [device], deadline_s=30.0)
            working = self.folder / "on-board"
            working.mkdir()
            sweep = self.new_sweep(working)
            sweep.command = self.board_command
            copied(self.prepared, sweep.artifacts)
            ran = sweep.run()
            assert ran.run_id is not None, ran.err
            self._board = device, sweep.artifacts, sweep.tables(ran.run_id)
        return self._board

    def seconds(self, missing: FirstStage) -> float:
        """Return the expected duration of an undisturbed run. `missing`: the first stage without a result."""
        return self.slowness * SECONDS[missing]

    @property
    def board_command(self) -> list[str]:
        return [f"--config-dir={self.folder / 'conf'}", "device=board_1"]

    def proxy(self) -> FaultyStore:
        if self._proxy is None:
            assert self.object_store is not None
            self._proxy = FaultyStore(self.object_store.endpoint)
            self.stack.callback(self._proxy.close)
        return self._proxy

    def clock(self) -> Path:
        if self._clock is None:
            self._clock = self.folder / "shifted_clock.so"
            source = Path(__file__).with_name("shifted_clock.c")
            command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(self._clock), str(source), "-ldl"]
            subprocess.run(command, check=True)
        return self._clock


@dataclass(kw_only=True)
class Case:
    """One fault: the sweep that it disturbs, and the disturbed run."""

    bench: Bench
    sweep: Sweep
    expected: Tables
    stack: ExitStack
    """What ends with the case."""
    disturbed: Ran | None = None
    """None for a fault at rest."""
    fault: str = ""
    """What is known of the fault before the disturbed run has ended."""
    is_killed: bool = False
    """Whether the fault killed the command's own process, so that the disturbed run need not say anything."""
    may_leave_lease: bool = False
    """Whether a killed process may have left the folder of its lease, which goes with the next lease of the device."""


def flipped_bit(case: Case, chance: random.Random) -> str:
    """Flip a bit of a file at rest."""
    work, path = _at_rest(case, chance)
    data = bytearray(path.read_bytes())
    position, bit = chance.randrange(len(data)), chance.randrange(8)
    data[position] ^= 1 << bit
    _overwrite(path, bytes(data))
    return f"bit {bit} of byte {position} of {path.relative_to(case.sweep.artifacts)}, {_text(work)}"


def truncated_file(case: Case, chance: random.Random) -> str:
    """Truncate a file at rest."""
    work, path = _at_rest(case, chance)
    data = path.read_bytes()
    size = chance.choice((0, chance.randrange(len(data)), len(data) - 1))
    _overwrite(path, data[:size])
    return f"{size} of {len(data)} bytes of {path.relative_to(case.sweep.artifacts)}, {_text(work)}"


def future_files(case: Case, chance: random.Random) -> str:
    """Let the last run and the times of all files lie in the future or in the past, as after a wrong clock."""
    copied(case.bench.prepared, case.sweep.artifacts)
    work = _work(case, chance, at_rest=True)
    days = chance.choice((-400, -1, 1, 400, 4000))
    (last,) = (path.name for path in (case.sweep.artifacts / "runs").iterdir() if path.is_dir())
    other = f"{int(last[:4]) + (1 if days > 0 else -1)}{last[4:]}"
    for folder in [case.sweep.artifacts / "runs" / last, *case.sweep.artifacts.glob(f"tables/*/run={last}")]:
        folder.rename(folder.with_name(folder.name.replace(last, other)))
    for path in case.sweep.artifacts.rglob("*"):
        if not path.is_symlink():
            os.utime(path, (time.time() + days * DAY_S,) * 2)
    return f"files of {days:+} days and the run {other}, {_text(work)}"


def killed_process(case: Case, chance: random.Random, *, extra_s: float = 0.0) -> str:
    """Kill a process of the sweep."""
    copied(case.bench.prepared, case.sweep.artifacts)
    process, text = _started(case, chance, extra_s=extra_s)
    return f"{_kill(case, process, chance)}, {text}"


def killed_with_server(case: Case, chance: random.Random) -> str:
    """Kill a process of a sweep with a temporary server, which may be the server."""
    case.sweep.cold = True
    return killed_process(case, chance, extra_s=15.0)


def full_disk(case: Case, chance: random.Random) -> str:
    """Fill the disk of the artifacts folder during a run."""
    artifacts = case.sweep.artifacts
    artifacts.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "qnnsweep-faults", str(artifacts)]
    subprocess.run(mount, check=True)
    case.stack.callback(subprocess.run, ["umount", "-l", str(artifacts)], check=True)
    copied(case.bench.prepared, artifacts)
    spare = chance.choice((0, 0, 4096, 100_000, 1_000_000))
    process, text = _started(case, chance)
    ballast = artifacts / "ballast"
    size = shutil.disk_usage(artifacts).free - spare
    with ballast.open("wb") as file, suppress(OSError):  # another process may have taken some of the rest
        os.posix_fallocate(file.fileno(), 0, size)
    case.disturbed = case.sweep.end(process)
    ballast.unlink()
    return f"{spare} bytes left on the disk, {text}"


def failing_store(case: Case, chance: random.Random) -> str:
    """Let requests to the object store fail during a run."""
    proxy, url = case.bench.proxy(), f"{BUCKET}/{case.sweep.folder.name}"
    copied(case.bench.prepared, case.sweep.artifacts)
    work = _work(case, chance)
    remote = fs.S3FileSystem(endpoint_override=proxy.endpoint)
    for folder in ("blobs", "results", "tables"):
        if (case.sweep.artifacts / folder).exists():
            fs.copy_files(
                str(case.sweep.artifacts / folder), f"{url}/{folder}", destination_filesystem=remote, use_threads=False
            )
    case.stack.callback(remote.delete_dir, url)
    case.sweep.url = f"s3://{url}"
    variables = case.bench.object_store.environment if case.bench.object_store else {}
    caches = {"XDG_CACHE_HOME": str(case.sweep.folder / "cache"), "AWS_ENDPOINT_URL": proxy.endpoint}
    case.sweep.environment |= variables | caches
    fault, share = chance.choice(STORE_FAULTS), chance.choice((0.03, 0.1, 0.3, 1.0))
    if fault == "late":  # a hundred requests that are all 4 s late take longer than a run may take
        share = min(share, 0.3)
    seed = chance.randrange(2**32)
    process, text = _started(case, chance, work=work)
    proxy.fail(fault, share, seed)
    try:
        case.disturbed = case.sweep.end(process)
    finally:
        proxy.fail(None)
    return f"{fault} for {share:.0%} of the requests ({dict(proxy.hit)}), {text}"


def dead_device(case: Case, chance: random.Random) -> str:
    """Stop, freeze or disconnect the device during a run."""
    device, artifacts, case.expected = case.bench.board()
    case.sweep.command = case.bench.board_command
    copied(artifacts, case.sweep.artifacts)
    case.sweep.remove_results("measure")
    seconds = case.bench.seconds("measure")
    process = case.sweep.start()
    after_s = _wait(process, chance.uniform(0.05, 0.9) * seconds)
    what = chance.choice(("dead", "frozen", "disconnected"))
    if what == "frozen":
        device.freeze()
    elif what == "dead":
        device.kill()
    else:
        for connection in device.processes:
            with suppress(psutil.NoSuchProcess):
                connection.kill()
    case.disturbed = case.sweep.end(process)
    if what == "frozen":
        device.thaw()
    elif what == "dead":
        device.start()
    return f"device {what} after {after_s:.1f} s, measure missing"


def shifted_clock(case: Case, chance: random.Random) -> str:
    """Set the clock of a run back or ahead, before its start or while it runs."""
    copied(case.bench.prepared, case.sweep.artifacts)
    work = _work(case, chance)
    case.sweep.cold = True
    days = chance.choice((-400, -30, -1, 1, 30, 400))
    in_s = chance.choice((0.0, chance.uniform(5, 15 + case.bench.seconds(work))))
    shift = {
        "LD_PRELOAD": str(case.bench.clock()),
        "CLOCK_SHIFT_S": str(days * DAY_S),
        "CLOCK_SHIFT_AT": str(int(time.monotonic() + in_s)),
    }
    case.sweep.environment |= shift
    case.disturbed = case.sweep.run()
    for name in shift:
        del case.sweep.environment[name]
    return f"clock shifted by {days:+} days after {in_s:.1f} s, {_text(work)}"


def two_at_once(case: Case, chance: random.Random) -> str:
    """Run the same command twice at the same time on one store; by chance, kill the second one."""
    copied(case.bench.prepared, case.sweep.artifacts)
    (case.sweep.folder / "other").mkdir()
    other = case.bench.new_sweep(case.sweep.folder / "other")
    other.shared, other.cold = case.sweep.artifacts, True
    work = _work(case, chance)
    second = other.start()
    after_s = _wait(second, chance.uniform(0, 15 + case.bench.seconds(work)))
    process = case.sweep.start()
    is_killed = chance.random() < 0.3
    if is_killed:
        _wait(process, chance.uniform(0, case.bench.seconds(work)))
        with suppress(psutil.NoSuchProcess):
            second.kill()
        case.may_leave_lease = True
    case.disturbed = case.sweep.end(process)
    ran = judge(other.end(second), other, case.expected)
    assert ran.word != "lost" or is_killed, f"the second run: {ran.text}"
    return f"a second run {after_s:.1f} s before, {'killed' if is_killed else ran.word}, {_text(work)}"


def short_memory(case: Case, chance: random.Random) -> str:
    """Let a process of the sweep get hardly any more memory, as `ulimit -v` does: its allocations fail."""
    copied(case.bench.prepared, case.sweep.artifacts)
    process, text = _started(case, chance)
    spare = chance.choice((0, 1 << 20, 16 << 20, 128 << 20))
    with suppress(psutil.NoSuchProcess, IndexError):
        victim = chance.choice([process, *process.children(recursive=True)])
        limit = victim.memory_info().vms + spare
        case.fault = f"{spare >> 20} MiB more for {command_of(victim.pid)[-60:]}"
        victim.rlimit(psutil.RLIMIT_AS, (limit, limit))
    case.disturbed = case.sweep.end(process)
    case.is_killed, case.may_leave_lease = case.disturbed.run_id is None, True  # without memory, it can be silent
    return f"{case.fault}, {text}"


def killed_runner(case: Case, chance: random.Random) -> str:
    """Kill nothing but the runner of the programs on the local device, which is known by its working folder."""
    copied(case.bench.prepared, case.sweep.artifacts)
    case.sweep.remove_results("measure")
    process, number = case.sweep.start(), chance.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV))
    leases, text = str(case.sweep.leases), ""
    while not text and process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        for child in process.children(recursive=True):
            with suppress(psutil.Error):
                if child.cwd().startswith(leases):
                    _wait(child, chance.uniform(0, 0.3))  # it runs for half a second
                    child.send_signal(number)
                    text = f"{number.name} to the runner"
                    break
        time.sleep(0.01)
    case.disturbed = case.sweep.end(process)
    return f"{text or 'each runner had ended before'}, measure to do"


KINDS: Mapping[str, tuple[Callable[[Case, random.Random], str], float]] = {
    "flipped bit": (flipped_bit, 0.27),
    "truncated file": (truncated_file, 0.12),
    "future files": (future_files, 0.04),
    "killed process": (killed_process, 0.26),
    "killed process, temporary server": (killed_with_server, 0.03),
    "full disk": (full_disk, 0.08),
    "failing store": (failing_store, 0.05),
    "dead device": (dead_device, 0.03),
    "shifted clock": (shifted_clock, 0.02),
    "two at once": (two_at_once, 0.04),
    "short memory": (short_memory, 0.04),
    "killed runner": (killed_runner, 0.02),
}
"""By the name of a kind of faults, its function and how often it is chosen."""


def _at_rest(case: Case, chance: random.Random) -> tuple[FirstStage, Path]:
    """Copy the artifacts, remove some results, and choose a file."""
    copied(case.bench.prepared, case.sweep.artifacts)
    work = _work(case, chance, at_rest=True)
    files = sorted(path for path in case.sweep.artifacts.rglob("*") if path.is_file() and not path.is_symlink())
    return work, chance.choice([path for path in files if path.stat().st_size])


def _work(case: Case, chance: random.Random, *, at_rest: bool = False) -> FirstStage:
    """Remove results of the copied artifacts, by chance, and return the first stage without a result."""
    stages: Sequence[FirstStage] = [work for work in WORKS if work != "everything" or not at_rest]
    (work,) = chance.choices(stages, [WORKS[work] for work in stages])
    case.sweep.remove_results(work)
    return work


def _started(
    case: Case, chance: random.Random, *, work: FirstStage | None = None, extra_s: float = 0.0
) -> tuple[psutil.Process, str]:
    """Start the command, and wait for a moment by chance. `extra_s`: the time of a start that is not warm."""
    missing = work or _work(case, chance)
    share, process = chance.random(), case.sweep.start()
    after_s = _wait(process, share * (case.bench.seconds(missing) + extra_s))
    return process, f"after {after_s:.1f} s, {_text(missing)}"


def _wait(process: psutil.Process, seconds: float) -> float:
    """Wait for the seconds or until the process has ended. Return the time that has passed."""
    started = time.monotonic()
    with suppress(psutil.TimeoutExpired):
        process.wait(seconds)
    return time.monotonic() - started


def _kill(case: Case, process: psutil.Process, chance: random.Random) -> str:
    number = chance.choice((signal.SIGKILL, signal.SIGTERM))
    place = chance.random()
    text = "the sweep had ended"
    family: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess, IndexError):
        started = process.children(recursive=True) if process.is_running() else []
        family = [process, *started]
        victim = family[0] if place < 0.4 else family[int(place * len(family))]
        command = command_of(victim.pid)
        victim.send_signal(number)
        case.is_killed = victim == process
        text = f"{number.name} to {'the program' if case.is_killed else command[-60:]}"
    case.fault, case.may_leave_lease = text, True
    case.disturbed = case.sweep.end(process, family)
    return text


def _overwrite(path: Path, data: bytes) -> None:
    """Change a file in place, so that its hard links in the same folder change too, as they do on a damaged disk."""
    path.chmod(0o644)
    path.write_bytes(data)


def _text(work: FirstStage) -> str:
    return "nothing to do" if work == "nothing" else f"{work} to do"
