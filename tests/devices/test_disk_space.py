"""Old files are removed from a device; files of others never are."""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from qnnsweep.conf.devices import DeviceConfig
from qnnsweep.tasks.devices.deploy import deploy
from qnnsweep.tasks.devices.device import open_device
from qnnsweep.tasks.devices.disk_space import claim
from qnnsweep.tasks.devices.farm import Farm
from qnnsweep.tasks.errors import DeviceError
from tests.devices.bench import WRITES, Bench

DAY_S = 86_400


def blobs(folder: Path) -> set[str]:
    return {path.name for path in (folder / "blobs").iterdir()}


@pytest.mark.parametrize("config_name", ["over_adb", "over_ssh", "here"])
def test_files_that_were_not_used_for_long_are_removed_and_others_stay(bench: Bench, config_name: str) -> None:
    config: DeviceConfig = getattr(bench, config_name)
    here = bench.phone.data / "local" / "qnnsweep" if config_name == "over_adb" else Path(str(config.work_folder))
    old, recent = bench.bundle(WRITES, ballast=1000), bench.bundle(WRITES)
    bench.measure(old, config)
    for path in here.glob("blobs/*"):
        os.utime(path, (time.time() - 20 * DAY_S,) * 2)
    with bench.farm.lease([replace(config, keep_days=30)]) as device:
        deploy(recent, device=device, store=bench.store)  # it touches the blobs that it needs
    assert blobs(here) == {blob.sha256 for blob in old.blobs}
    bench.measure(recent, config)
    assert blobs(here) == {blob.sha256 for blob in recent.blobs}
    assert list((here / "leases").iterdir()) == []


def test_on_a_nearly_full_device_all_files_that_the_cell_does_not_need_are_removed(bench: Bench) -> None:
    phone = replace(bench.over_adb, work_folder="/data/small/qnnsweep", least_free_mib=4)
    large, other = (bench.bundle(WRITES, ballast=10_000_000) for _ in range(2))
    for bundle in (large, other):
        assert bench.measure(bundle, phone).device == "phone"
    assert blobs(bench.phone.small / "qnnsweep") == {blob.sha256 for blob in other.blobs}


@pytest.mark.parametrize("config_name", ["over_adb", "over_ssh", "here"])
def test_a_folder_with_files_of_others_is_refused_and_left_unchanged(bench: Bench, config_name: str) -> None:
    config: DeviceConfig = getattr(bench, config_name)
    here = bench.phone.data / "local" / "qnnsweep" if config_name == "over_adb" else Path(str(config.work_folder))
    (here / "blobs").mkdir(parents=True)
    for name in ("thesis.txt", "blobs/old"):
        (here / name).write_text("the only copy")
        os.utime(here / name, (0, 0))
    with pytest.raises(DeviceError, match="holds files that are not qnnsweep's"):
        bench.measure(bench.bundle(WRITES), config)
    assert sorted(str(path.relative_to(here)) for path in here.rglob("*")) == ["blobs", "blobs/old", "thesis.txt"]


def test_holders_that_claim_a_new_folder_at_the_same_time_all_have_it(bench: Bench) -> None:
    holders = 8
    begin = threading.Barrier(holders)

    def claim_one_after_the_other(_: int) -> None:
        for number in range(25):
            config = replace(bench.here, work_folder=str(bench.folder / f"new {number}" / "qnnsweep"))
            device = open_device(config, host_environment={}, folder=bench.folder, native={})
            begin.wait(timeout=60)
            try:
                claim(device)
                (Path(device.work_folder) / "qnnsweep-lock").mkdir(exist_ok=True)  # as the next step of a lease does
            except DeviceError:
                begin.abort()
                raise

    with ThreadPoolExecutor(holders) as threads:
        list(threads.map(claim_one_after_the_other, range(holders)))


@pytest.mark.parametrize("config_name", ["over_adb", "over_ssh", "here"])
def test_only_the_connecting_user_can_change_files_in_the_work_folder(bench: Bench, config_name: str) -> None:
    config: DeviceConfig = getattr(bench, config_name)
    here = bench.phone.data / "local" / "qnnsweep" if config_name == "over_adb" else Path(str(config.work_folder))
    bench.measure(bench.bundle(WRITES), config)
    folders = [here, *(here / name for name in ("blobs", "leases", "native"))]
    assert [(path.stat().st_mode & 0o777, path.stat().st_uid) for path in folders] == [(0o700, os.getuid())] * 4
    for path, (mode, owner) in zip(folders, ((0o777, 0), (0o720, 0), (0o702, 0), (0o700, 65534)), strict=True):
        path.chmod(mode)
        os.chown(path, owner, owner)
        letters = stat.filemode(path.stat().st_mode)
        there = f"{config.work_folder}{str(path).removeprefix(str(here))}"
        words = f"{there} has the mode {letters} and the owner {owner}, and the user is 0; remove the folder"
        with pytest.raises(DeviceError, match=re.escape(words)), fresh_farm(bench, mode).lease([config]):
            pass
        path.chmod(0o700)
        os.chown(path, 0, 0)


def fresh_farm(bench: Bench, number: int) -> Farm:
    """Return a farm in which no device is quarantined."""
    return Farm(host_environment={}, folder=bench.folder / f"farm {number}")


def test_a_folder_that_another_user_created_is_refused(bench: Bench) -> None:
    folder = Path(str(bench.here.work_folder))
    folder.mkdir(parents=True)
    for path in (folder, *(folder / name for name in ("blobs", "leases", "native"))):
        path.mkdir(exist_ok=True)
        os.chown(path, 65534, 65534)
        path.chmod(0o777)
    (folder / ".qnnsweep").touch()
    with pytest.raises(DeviceError, match=r"other users can change files in device\.work_folder="):
        bench.measure(bench.bundle(WRITES), bench.here)


def test_a_link_to_a_folder_is_refused(bench: Bench, tmp_path: Path) -> None:
    folder = Path(str(bench.here.work_folder))
    (tmp_path / "elsewhere").mkdir()
    folder.parent.mkdir(parents=True)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DeviceError, match=r"other users can change files in device\.work_folder="):
        bench.measure(bench.bundle(WRITES), bench.here)
