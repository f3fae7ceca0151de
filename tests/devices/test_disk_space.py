"""Old files are removed from a device, files of others never."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from conf.schema import DeviceConfig
from tasks.deploy import deploy
from tasks.errors import DeviceError

from .bench import WRITES, Bench

DAY_S = 86_400


def blobs(folder: Path) -> set[str]:
    return {path.name for path in (folder / "blobs").iterdir()}


@pytest.mark.parametrize("way", ["over_adb", "over_ssh", "here"])
def test_what_was_not_used_for_long_goes_and_what_was_stays(bench: Bench, way: str) -> None:
    config: DeviceConfig = getattr(bench, way)
    here = bench.phone.data / "local" / "qnnsweep" if way == "over_adb" else Path(str(config.work_folder))
    old, kept = bench.bundle(WRITES, ballast=1000), bench.bundle(WRITES)
    bench.measure(old, config)
    for path in here.glob("blobs/*"):
        os.utime(path, (time.time() - 20 * DAY_S,) * 2)
    with bench.farm.lease([replace(config, keep_days=30)]) as device:
        deploy(kept, device=device, store=bench.store)  # touches what it needs
    assert blobs(here) == {blob.sha256 for blob in old.blobs}
    bench.measure(kept, config)
    assert blobs(here) == {blob.sha256 for blob in kept.blobs}
    assert list((here / "leases").iterdir()) == []


def test_on_a_device_that_is_nearly_full_everything_that_the_cell_does_not_need_goes(bench: Bench) -> None:
    phone = replace(bench.over_adb, work_folder="/data/small/qnnsweep", least_free_mib=4)
    large, other = (bench.bundle(WRITES, ballast=10_000_000) for _ in range(2))
    for bundle in (large, other):
        assert bench.measure(bundle, phone).execution.device == "phone"
    assert blobs(bench.phone.small / "qnnsweep") == {blob.sha256 for blob in other.blobs}


@pytest.mark.parametrize("way", ["over_adb", "over_ssh", "here"])
def test_a_folder_with_files_of_somebody_elses_is_refused_and_stays_as_it_is(bench: Bench, way: str) -> None:
    config: DeviceConfig = getattr(bench, way)
    here = bench.phone.data / "local" / "qnnsweep" if way == "over_adb" else Path(str(config.work_folder))
    (here / "blobs").mkdir(parents=True)
    for name in ("thesis.txt", "blobs/old"):
        (here / name).write_text("the only copy")
        os.utime(here / name, (0, 0))
    with pytest.raises(DeviceError, match="holds files that are not qnnsweep's"):
        bench.measure(bench.bundle(WRITES), config)
    assert sorted(str(path.relative_to(here)) for path in here.rglob("*")) == ["blobs", "blobs/old", "thesis.txt"]
