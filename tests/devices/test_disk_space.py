"""Old files are removed from a device; files of others never are."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from conf.schema import DeviceConfig
from tasks.deploy import deploy
from tasks.errors import DeviceError
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
        assert bench.measure(bundle, phone).execution.device == "phone"
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
