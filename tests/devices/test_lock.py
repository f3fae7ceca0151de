"""A device has one lock, which is on the device, whatever it is called; a holder that lost the lock runs nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from qnnsweep.conf.devices import DeviceConfig
from qnnsweep.tasks.devices import lock
from qnnsweep.tasks.devices.device import Device, open_device
from qnnsweep.tasks.devices.farm import Farm
from qnnsweep.tasks.devices.lock import DeviceBusy, holder_of, locked
from qnnsweep.tasks.devices.remote_command import _FENCE_S
from qnnsweep.tasks.errors import DeviceError, LeaseLost
from tests.devices.bench import WRITES, Bench
from tests.flows.cluster import wait_until
from tests.storage.test_atomic import dead_process, name_of

HOLDS = """
import sys, time
from pathlib import Path
from qnnsweep.tasks.devices import lock
from qnnsweep.tasks.devices.farm import Farm
from qnnsweep.tasks.devices.remote_command import _FENCE_S
from qnnsweep.tasks.errors import LeaseLost
from tests.devices.test_lock import config_from
lock.LEASE_S = int(sys.argv[2])
farm = Farm(host_environment={}, folder=Path(sys.argv[3]))
with farm.lease([config_from(sys.argv[1])]) as device:
    print("held", flush=True)
    try:
        device.run(["sh", "-c", "echo $$ >running; while :; do sleep 0.2; date +%s.%N >beat; done"],
                   folder=device.work_folder)
    except LeaseLost as error:
        print(error, flush=True)
"""


def config_from(text: str) -> DeviceConfig:
    merged = OmegaConf.merge(OmegaConf.structured(DeviceConfig), OmegaConf.create(text))
    config = OmegaConf.to_object(merged)
    assert isinstance(config, DeviceConfig)
    return config


@contextmanager
def holder(config: DeviceConfig, lease_s: int, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds the device and runs an endless command on it."""
    text = OmegaConf.to_yaml(OmegaConf.structured(config))
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, text, str(lease_s), str(folder)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.fixture(params=["over_adb", "over_ssh", "here"])
def config(request: pytest.FixtureRequest, bench: Bench) -> DeviceConfig:
    return getattr(bench, request.param)


def lock_file(bench: Bench, config: DeviceConfig) -> Path:
    """Return the path of the lock's file `holder` on this machine, where all devices of the tests run."""
    folders = {"phone": bench.phone.data / "local" / "tmp", "board": bench.board.folder}
    return folders.get(config.name, Path(config.work_folder or "")) / "qnnsweep-lock" / "holder"


def opened(config: DeviceConfig, folder: Path) -> Device:
    device = open_device(config, host_environment={}, folder=folder, native={})
    device.run(["mkdir", "-m", "700", "-p", "--", device.work_folder])
    return device


def other_name(bench: Bench, config: DeviceConfig) -> DeviceConfig:
    """Return the same device under another name, with another address and another work folder where it can have one."""
    if config.name == "here":
        return replace(config, name="again")
    folder = replace(config, name="again", work_folder=f"{config.work_folder}-again")
    if config.name == "board":
        return replace(folder, address=f"root@localhost:{bench.board.port}")
    return folder


@pytest.mark.slow
def test_a_device_with_two_names_in_two_sweeps_has_one_lease_at_a_time(bench: Bench, config: DeviceConfig) -> None:
    localhost = bench.board.known_hosts.read_text().replace("127.0.0.1", "localhost")
    with bench.board.known_hosts.open("a") as known:
        known.write(localhost)
    here: list[str] = []
    most, guard = 0, threading.Lock()

    def hold(number: int) -> str:
        nonlocal most
        named = (config, other_name(bench, config))[number % 2]
        farm = Farm(host_environment={}, folder=bench.folder / "devices")  # of another sweep
        with farm.lease([named]) as device:
            with guard:
                here.append(device.name)
                most = max(most, len(here))
            assert device.run(["true"]).exit_code == 0
            with guard:
                here.remove(device.name)
        return device.name

    with ThreadPoolExecutor(4) as threads:
        names = list(threads.map(hold, range(6)))
    assert most == 1
    assert names == [config.name, "again"] * 3


def test_a_device_is_free_at_once_when_a_process_of_this_host_was_killed(bench: Bench, config: DeviceConfig) -> None:
    with holder(config, 90, bench.folder / "other") as process:
        device = opened(config, bench.folder)
        assert holder_of(device) is not None
        with pytest.raises(DeviceBusy) as busy, locked(device):
            pass
        process.kill()
        process.wait()
        assert str(process.pid) in busy.value.holder
        assert holder_of(device) is None
        with locked(device):
            assert device.run(["echo", "mine"]).stdout == b"mine\n"
        device.transport.close()


@pytest.mark.slow
def test_a_holder_that_slept_is_stopped_on_the_device_and_told_so(bench: Bench, config: DeviceConfig) -> None:
    device = opened(replace(config, name="mine"), bench.folder)
    here = bench.phone.data / "local" / "qnnsweep" if config.name == "phone" else Path(device.work_folder)
    with holder(config, 6, bench.folder / "other") as process, ExitStack() as stack:
        wait_until((here / "beat").exists, 30, "the command runs")
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_taken(device, stack), 30, "the lock is free")
        if config.name == "here":  # the process that starts a command of this machine sleeps together with the command
            os.kill(int((here / "running").read_text()), signal.SIGKILL)
        time.sleep(_FENCE_S + 2)
        before = (here / "beat").read_text()
        time.sleep(1)
        assert (here / "beat").read_text() == before
        process.send_signal(signal.SIGCONT)
        said, _ = process.communicate(timeout=60)
        assert "did not renew it in time, for example because its machine slept" in said
        assert device.run(["echo", "mine"]).stdout == b"mine\n"  # the earlier holder has released no lock of another
    device.transport.close()


def is_taken(device: Device, stack: ExitStack) -> bool:
    try:
        stack.enter_context(locked(device))
    except DeviceBusy:
        return False
    return True


@pytest.mark.slow
def test_a_cell_whose_lease_is_lost_starts_again_and_its_device_stays_in_use(
    bench: Bench, config: DeviceConfig
) -> None:
    marker = bench.folder / "ran"
    code = f"""{WRITES}
import os, time
log = Path({str(marker if config.name != "phone" else "/data/ran")!r})
log.open("a").write("run\\n")
if log.read_text().count("run") == 1:
    holder = Path(sys.argv[0]).parents[1] / "marker"
    time.sleep(60)
"""
    seen = bench.phone.data / "ran" if config.name == "phone" else marker
    file = lock_file(bench, config)

    def steal() -> None:
        while not seen.exists():
            time.sleep(0.05)
        _, until, boot = file.read_text().split()
        file.write_text(f"{name_of(dead_process())} {until} {boot}\n")
        if config.name == "here":  # the lock of a local device is looked at before and after a command
            time.sleep(0.5)
            for process in psutil.process_iter(["cmdline"]):
                if bench.store.put_bytes(code.encode()).sha256 in " ".join(process.info["cmdline"] or []):
                    process.kill()

    thread = threading.Thread(target=steal)
    thread.start()
    capture = bench.measure(bench.bundle(code), config)
    thread.join()
    assert capture.device == config.name
    assert seen.read_text() == "run\nrun\n"
    assert bench.farm.quarantined == {}


@pytest.mark.slow
def test_a_device_whose_lease_is_lost_again_and_again_is_not_used_any_more(bench: Bench) -> None:
    code = f"{WRITES}\nPath({str(lock_file(bench, bench.here))!r}).write_text('')\n"
    with pytest.raises(DeviceError, match="did not renew it in time"):
        bench.measure(bench.bundle(code), bench.here)
    assert isinstance(bench.farm.quarantined["here"], LeaseLost)


BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
NOT_HELD = {
    "empty": "",
    "ended": f"{name_of(1, host='elsewhere')} 1 {BOOT}\n",
    "before a restart": f"{name_of(1, host='elsewhere')} 99999999999 another-boot\n",
    "later than any lease": f"{name_of(1, host='elsewhere')} 99999999999 {BOOT}\n",
    "no number": f"{name_of(1, host='elsewhere')} $(touch${{IFS}}canary) {BOOT}\n",
}


@pytest.mark.parametrize("text", NOT_HELD.values(), ids=NOT_HELD)
def test_a_lock_that_is_not_held_is_taken(bench: Bench, text: str) -> None:
    device = opened(bench.here, bench.folder)
    file = lock_file(bench, bench.here)
    file.parent.mkdir()
    file.write_text(text)
    with locked(device):
        assert file.read_text().split()[0] == Path(device.lease_folder).name
        assert holder_of(device) is not None
    assert file.read_text() == ""
    assert holder_of(device) is None


def test_the_path_of_a_lock_can_be_long_and_have_spaces(tmp_path: Path) -> None:
    work = tmp_path / "my nights" / ("long" * 50) / "work"
    device = opened(DeviceConfig(name="here", work_folder=str(work)), tmp_path)
    with locked(device):
        assert device.run(["true"]).exit_code == 0
        assert holder_of(device) is not None
    assert holder_of(device) is None


@pytest.mark.parametrize("host", ["elsewhere", ""])
def test_a_lock_of_another_host_or_of_a_running_process_is_busy(bench: Bench, host: str) -> None:
    device = opened(bench.here, bench.folder)
    file = lock_file(bench, bench.here)
    file.parent.mkdir()
    soon = int(time.clock_gettime(time.CLOCK_BOOTTIME)) + 60
    file.write_text(f"{name_of(os.getppid(), host=host)} {soon} {BOOT}\n")
    with pytest.raises(DeviceBusy, match=re.escape(name_of(os.getppid(), host=host))), locked(device):
        pass


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("locked")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(content=st.binary(max_size=300))
def test_any_content_of_the_lock_is_either_busy_or_free(place: Path, content: bytes) -> None:
    device = opened(DeviceConfig(name="here", work_folder=str(place / "work")), place)
    folder = place / "work" / "qnnsweep-lock"
    folder.mkdir(exist_ok=True)
    (folder / "holder").write_bytes(content)
    before = sorted(path.name for path in place.rglob("*"))
    try:
        with locked(device):
            assert device.run(["true"]).exit_code == 0
    except (DeviceBusy, DeviceError):
        pass
    assert sorted(path.name for path in place.rglob("*")) == sorted({*before, "mutex"})


def test_the_folder_of_another_user_is_not_used(bench: Bench) -> None:
    device = opened(bench.here, bench.folder)
    folder = lock_file(bench, bench.here).parent
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    with pytest.raises(DeviceError, match=r"^here: its lock \S+/qnnsweep-lock belongs to another user"), locked(device):
        pass
    soon = int(time.clock_gettime(time.CLOCK_BOOTTIME)) + 60
    (folder / "holder").write_text(f"{name_of(os.getpid(), host='elsewhere')} {soon} {BOOT}\n")
    with pytest.raises(DeviceBusy), locked(device):
        pass
    assert sorted(path.name for path in folder.iterdir()) == ["holder"]


def test_a_link_in_place_of_the_folder_is_not_followed(bench: Bench, tmp_path: Path) -> None:
    device = opened(bench.here, bench.folder)
    (tmp_path / "elsewhere").mkdir()
    lock_file(bench, bench.here).parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DeviceError, match="belongs to another user"), locked(device):
        pass
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_wait_for_another_process_is_one_line(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with holder(bench.here, 90, bench.folder / "other") as process:
        threading.Timer(4, lambda: (process.kill(), process.wait())).start()
        with bench.farm.lease([bench.here]):
            (line,) = caplog.messages
            assert re.fullmatch(
                rf"waiting for the device here, which another process uses \(\S+-{process.pid}-\S+\)", line
            )
        process.wait()


@pytest.mark.slow
def test_a_lock_is_renewed_for_as_long_as_the_lease_lasts(
    bench: Bench, config: DeviceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "LEASE_S", 4)
    with bench.farm.lease([config]) as device:
        assert device.run(["sleep", "9"]).exit_code == 0
        assert device.run(["true"]).exit_code == 0


def test_a_device_without_flock_says_so(bench: Bench) -> None:
    programs = bench.phone.data / "bin"
    (programs / "flock").write_text("#!/bin/sh\necho 'flock: not found' >&2; exit 127\n")
    (programs / "flock").chmod(0o755)
    capture = bench.measure(bench.bundle(WRITES), bench.over_adb, bench.here)
    assert capture.device == "here"
    assert str(bench.farm.quarantined["phone"]) == "phone: cannot use the lock of the device: flock: not found"
