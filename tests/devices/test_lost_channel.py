"""The behaviour of a transport when the device is lost or hangs in the middle of a transfer or a command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from qnnsweep.tasks.devices.transport import Fence, RunRequest, Transport
from qnnsweep.tasks.errors import DeviceError
from tests.devices.bench import when
from tests.devices.conftest import over_adb, over_ssh
from tests.devices.loopback import Adbd, AdbServer, Sshd, running
from tests.processes import assert_dead, assert_gone, command_of, eventually

pytestmark = pytest.mark.slow

LARGE = 300_000_000
SLEEPER = """
import os, time
from pathlib import Path
Path("writing").write_text(str(os.getpid()))
os.rename("writing", "pid")
time.sleep(600)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fragile:
    """A device that one test may break."""

    reach: Callable[[float], Transport]
    """Return a new transport to it, with this deadline for transfers."""
    folder: str
    here: Path
    break_off: Callable[[], None]
    freeze: Callable[[], None]
    thaw: Callable[[], None]
    come_back: Callable[[], None]


def phone(folder: Path, adb_server: AdbServer) -> tuple[Adbd, Fragile]:
    device = Adbd(folder=folder, server=adb_server)
    (device.data / "work").mkdir(parents=True)
    return device, Fragile(
        reach=lambda deadline_s: over_adb(device, deadline_s),
        folder="/data/work",
        here=device.data / "work",
        break_off=device.kill,
        freeze=device.freeze,
        thaw=device.thaw,
        come_back=device.start,
    )


def board(folder: Path) -> tuple[Sshd, Fragile]:
    device = Sshd(folder=folder)
    (folder / "work").mkdir()
    return device, Fragile(
        reach=lambda deadline_s: over_ssh(device, deadline_s),
        folder=str(folder / "work"),
        here=folder / "work",
        break_off=device.kill,
        freeze=device.freeze,
        thaw=device.thaw,
        come_back=device.start,
    )


@pytest.fixture(params=["adb", "ssh"])
def fragile(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fragile]:
    folder = tmp_path / "device"
    folder.mkdir()
    device, fragile_device = (
        phone(folder, request.getfixturevalue("adb_server")) if request.param == "adb" else board(folder)
    )
    with running(device):
        yield fragile_device


def arriving(folder: Path) -> Callable[[], bool]:
    """Return a condition: a part of a file has arrived."""
    return lambda: any(
        path.is_file() and path.stat().st_size > 0
        for pattern in (".incoming-*", ".incoming-*/*", ".incoming-*/*/*")
        for path in folder.glob(pattern)
    )


def test_a_lost_device_is_an_error(fragile: Fragile) -> None:
    fragile.break_off()
    with pytest.raises(DeviceError):
        fragile.reach(30).run(RunRequest(["true"], deadline_s=30))


def test_a_device_that_is_lost_during_a_push_has_no_file_under_the_final_name(fragile: Fragile, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(bytes(LARGE))
    breaking = when(arriving(fragile.here), fragile.break_off)
    with pytest.raises(DeviceError, match=r"cannot push"):
        fragile.reach(60).push(tmp_path / "source", f"{fragile.folder}/file")
    breaking.join()
    assert not (fragile.here / "file").exists()
    fragile.come_back()
    again = fragile.reach(60)
    again.push(tmp_path / "source", f"{fragile.folder}/file")
    assert (fragile.here / "file").stat().st_size == LARGE
    again.close()


def test_a_device_that_is_lost_during_a_pull_leaves_no_file_here(fragile: Fragile, tmp_path: Path) -> None:
    (fragile.here / "file").write_bytes(bytes(LARGE))
    back = tmp_path / "back"
    breaking = when(arriving(back), fragile.break_off)
    with pytest.raises(DeviceError, match=r"cannot pull"):
        fragile.reach(60).pull(fragile.folder, {"file": LARGE}, back / "launch")
    breaking.join()
    assert list(back.iterdir()) == []


@pytest.mark.timeout(120)
def test_a_device_that_is_lost_during_a_command_is_an_error_and_the_command_dies_there(fragile: Fragile) -> None:
    breaking = when((fragile.here / "pid").exists, fragile.break_off)
    with pytest.raises(DeviceError, match=r"lost the device .* while it ran"):
        fragile.reach(60).run(RunRequest([sys.executable, "-c", SLEEPER], deadline_s=300, folder=fragile.folder))
    breaking.join()
    assert_dead(int((fragile.here / "pid").read_text()), within_s=20)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("fenced", [False, True])
def test_what_watches_a_command_ends_with_it_although_the_shell_that_waits_for_both_was_killed(
    fragile: Fragile, fenced: bool
) -> None:
    (fragile.here / "holder").write_text(f"me {int(time.clock_gettime(time.CLOCK_BOOTTIME)) + 600} boot\n")
    transport = fragile.reach(60)
    transport.fence = Fence(holder=f"{fragile.folder}/holder", token="me") if fenced else None
    watching: list[psutil.Process] = []

    def kill_shell() -> None:
        shell = psutil.Process(int((fragile.here / "pid").read_text())).parent()
        assert shell is not None

        def watches() -> list[psutil.Process]:
            """Return the watch of the channel, of the deadline and, with a fence, of the lock, when all have begun."""
            found = [child for child in shell.children(recursive=True) if "kill -KILL" in command_of(child.pid)]
            return found if len(found) >= 2 + fenced else []

        watching.extend(eventually(watches, 20))
        shell.kill()
        fragile.break_off()

    killing = when((fragile.here / "pid").exists, kill_shell)
    with pytest.raises(DeviceError, match=r"lost the device .* while it ran"):
        transport.run(RunRequest([sys.executable, "-c", SLEEPER], deadline_s=300, folder=fragile.folder))
    killing.join()
    assert_dead(int((fragile.here / "pid").read_text()), within_s=20)
    assert watching
    assert_gone(watching, within_s=20)


@pytest.mark.timeout(120)
def test_a_device_that_hangs_is_an_error_at_the_deadline_and_the_command_dies_when_it_continues(
    fragile: Fragile,
) -> None:
    freezing = when((fragile.here / "pid").exists, fragile.freeze)
    with pytest.raises(DeviceError, match=r"deadline of 4 s"):
        fragile.reach(60).run(RunRequest([sys.executable, "-c", SLEEPER], deadline_s=4, folder=fragile.folder))
    freezing.join()
    fragile.thaw()
    assert_dead(int((fragile.here / "pid").read_text()), within_s=30)


@pytest.mark.timeout(120)
def test_a_transfer_to_a_device_that_hangs_ends_at_its_deadline(fragile: Fragile, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(bytes(LARGE))
    freezing = when(arriving(fragile.here), fragile.freeze)
    with pytest.raises(DeviceError, match=r"deadline of 5 s"):
        fragile.reach(5).push(tmp_path / "source", f"{fragile.folder}/file")
    freezing.join()
    assert not (fragile.here / "file").exists()
    fragile.thaw()


def test_a_connection_transfers_more_than_a_gigabyte(tmp_path: Path) -> None:
    # By default paramiko exchanges keys after 512 MiB, which may hang.
    (tmp_path / "device").mkdir()
    (tmp_path / "source").write_bytes(bytes(280_000_000))
    device, fragile_device = board(tmp_path / "device")
    with running(device):
        transport = fragile_device.reach(300)
        for _ in range(4):
            transport.push(tmp_path / "source", f"{fragile_device.folder}/file")
        transport.pull(fragile_device.folder, {"file": 280_000_000}, tmp_path / "back")
        assert (tmp_path / "back" / "file").stat().st_size == 280_000_000
        transport.close()


def test_a_command_dies_with_the_process_that_started_it(fragile: Fragile, tmp_path: Path) -> None:
    transport = fragile.reach(60)
    transport.run(RunRequest(["true"], deadline_s=60))
    transport.close()
    child = os.fork()
    if child == 0:
        try:
            fragile.reach(60).run(RunRequest([sys.executable, "-c", SLEEPER], deadline_s=300, folder=fragile.folder))
        finally:
            os._exit(0)
    killer = when((fragile.here / "pid").exists, lambda: os.kill(child, 9))
    os.waitpid(child, 0)
    killer.join()
    assert_dead(int((fragile.here / "pid").read_text()), within_s=20)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP, signal.SIGINT])
def test_a_command_of_the_local_device_dies_with_the_process_that_started_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    daemon = f"import os\nif os.fork() == 0:\n    os.setsid(); os.chdir('daemon')\n{SLEEPER}"
    (tmp_path / "daemon").mkdir()
    code = f"""
import sys
from qnnsweep.tasks.devices.local import LocalTransport
from qnnsweep.tasks.devices.transport import RunRequest
LocalTransport().run(RunRequest([sys.executable, "-c", {daemon!r}], deadline_s=300, folder={str(tmp_path)!r}))
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL
    ) as caller:
        pids = [tmp_path / "pid", tmp_path / "daemon" / "pid"]
        for _ in range(400):
            if all(path.exists() for path in pids):
                break
            time.sleep(0.05)
        caller.send_signal(number)
    for path in pids:
        assert_dead(int(path.read_text()), within_s=20)


def test_a_killed_adb_server_is_an_error_and_no_hang(tmp_path: Path) -> None:
    server = AdbServer(folder=tmp_path)
    (tmp_path / "device").mkdir()
    device, fragile_device = phone(tmp_path / "device", server)
    with running(server, device):
        breaking = when((fragile_device.here / "pid").exists, server.kill)
        with pytest.raises(DeviceError, match=r"lost the device"):
            fragile_device.reach(60).run(
                RunRequest([sys.executable, "-c", SLEEPER], deadline_s=300, folder=fragile_device.folder)
            )
        breaking.join()
        assert_dead(int((fragile_device.here / "pid").read_text()), within_s=20)
