"""A device has one holder at a time, and its files are removed for the next."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from qnnsweep.conf.devices import DeviceConfig
from qnnsweep.tasks.devices.farm import Farm
from qnnsweep.tasks.errors import DeviceError
from tests.storage.test_atomic import dead_process, name_of


@pytest.fixture
def farm(tmp_path: Path) -> Farm:
    return Farm(host_environment={"FROM": "host", "BOTH": "host"}, folder=tmp_path / "devices")


def test_a_device_is_held_by_one_lease_at_a_time(farm: Farm) -> None:
    holders, most = 0, 0
    guard = threading.Lock()

    def hold(_: int) -> str:
        nonlocal holders, most
        with farm.lease([DeviceConfig(name="phone")]) as device:
            with guard:
                holders += 1
                most = max(most, holders)
            time.sleep(0.02)
            with guard:
                holders -= 1
            return device.lease_folder

    with ThreadPoolExecutor(8) as threads:
        folders = list(threads.map(hold, range(16)))
    assert most == 1
    assert len(set(folders)) == 16


def test_two_devices_are_held_at_once(farm: Farm, tmp_path: Path) -> None:
    together = threading.Barrier(2, timeout=30)

    def hold(name: str) -> None:
        with farm.lease([DeviceConfig(name=name, work_folder=str(tmp_path / name))]):
            together.wait()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(hold, ["first", "second"]))


def test_an_error_ends_the_lease(farm: Farm) -> None:
    for _ in range(2):
        with pytest.raises(DeviceError, match="lost"), farm.lease([DeviceConfig(name="phone")]):
            raise DeviceError("lost")


def test_files_of_a_lease_are_removed_at_its_end(farm: Farm) -> None:
    with contextlib.suppress(DeviceError), farm.lease([DeviceConfig(name="phone")]) as device:
        folder = Path(device.lease_folder)
        (folder / "shipping" / "outputs").mkdir(parents=True)
        (folder / "shipping" / "outputs" / "half").touch()
        raise DeviceError("lost")
    assert not folder.exists()
    assert list(folder.parent.iterdir()) == []


def test_the_next_lease_removes_files_of_all_leases_that_have_ended_and_no_others(farm: Farm, tmp_path: Path) -> None:
    leases = tmp_path / "devices" / "local" / "leases"
    ended = {name_of(1), name_of(dead_process(), host="elsewhere"), name_of(1, namespace="0" * 16)}
    for name in (*ended, "a user's folder"):
        (leases / name / "shipping").mkdir(parents=True)
    with farm.lease([DeviceConfig(name="local")]) as device:
        assert {path.name for path in leases.iterdir()} == {"a user's folder", Path(device.lease_folder).name}
    assert {path.name for path in leases.iterdir()} == {"a user's folder"}


def test_a_device_has_the_values_of_its_configuration(farm: Farm, tmp_path: Path) -> None:
    with farm.lease([DeviceConfig(name="local")]) as device:
        assert (device.name, device.python, device.config.deadline_s) == ("local", sys.executable, 600.0)
        assert device.work_folder == str(tmp_path / "devices" / "local")
        assert Path(device.lease_folder).parent == Path(device.work_folder, "leases")
        assert device.environment == {"FROM": "host", "BOTH": "host"}
    config = DeviceConfig(
        name="mine",
        work_folder=str(tmp_path / "elsewhere"),
        python="/opt/python",
        environment={"BOTH": "device"},
        deadline_s=3,
    )
    with farm.lease([config]) as device:
        assert (device.work_folder, device.python, device.config.deadline_s) == (config.work_folder, "/opt/python", 3)
        assert device.environment == {"FROM": "host", "BOTH": "device"}


def test_a_command_has_the_devices_environment_and_deadline(farm: Farm) -> None:
    with farm.lease([DeviceConfig(name="local", environment={"OWN": "1"}, deadline_s=1)]) as device:
        assert device.run(["sh", "-c", "echo $FROM $OWN"]).stdout == b"host 1\n"
        with pytest.raises(DeviceError, match="deadline of 1 s"):
            device.run(["sleep", "60"])
