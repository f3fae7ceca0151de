"""A farm in a request: its devices, the overrides that apply to all of them, and the requests that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.load import load

PHONE = """\
name: {name}
transport: adb
address: {name}-serial
soc: {soc}
work_folder: /data/local/tmp/qnnsweep
python: /data/python
"""


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """Three phones of two SoCs and four farms. One farm is empty, and one names a device that does not exist."""
    for group in ("device", "farm"):
        (tmp_path / group).mkdir()
    for name, soc in (("one", "SM8650"), ("two", "SM8650"), ("three", "probe")):
        (tmp_path / "device" / f"{name}.yaml").write_text(PHONE.format(name=name, soc=soc))
    farms = {"pair": "[one, two]", "all": "[one, two, three, local]", "torn": "[one, tow]", "empty": "[]"}
    for name, devices in farms.items():
        (tmp_path / "farm" / f"{name}.yaml").write_text(f"name: {name}\ndevices: {devices}\n")
    return tmp_path


def test_a_cell_has_the_name_of_its_farm_and_may_go_to_each_of_its_devices(lab: Path) -> None:
    plan = load(["farm=all", "scheme=8a8w,16a8w"], config_dirs=[lab])
    assert [cell.request.names for cell in plan.cells] == [
        ("digits_cnn", "8a8w", "SM8650", "default", "qnn", "all"),
        ("digits_cnn", "16a8w", "SM8650", "default", "qnn", "all"),
    ]
    for cell in plan.cells:
        assert [device.name for device in cell.request.devices] == ["one", "two", "three", "local"]
        assert [device.soc for device in cell.request.devices] == ["SM8650", "SM8650", "probe", None]


def test_an_override_of_device_applies_to_all_devices_of_the_farm(lab: Path) -> None:
    (cell,) = load(["farm=pair", "device.deadline_s=7", "device.below_celsius=40"], config_dirs=[lab]).cells
    assert [(device.deadline_s, device.below_celsius) for device in cell.request.devices] == [(7, 40)] * 2
    assert [device.address for device in cell.request.devices] == ["one-serial", "two-serial"]


def test_without_a_farm_a_cell_goes_to_its_device(lab: Path) -> None:
    plan = load(["device=one,two"], config_dirs=[lab])
    assert [[device.name for device in cell.request.devices] for cell in plan.cells] == [["one"], ["two"]]
    assert [cell.request.names[-1] for cell in plan.cells] == ["one", "two"]


def test_a_cell_that_no_device_of_the_farm_can_take_is_impossible(lab: Path) -> None:
    plan = load(["farm=pair,all", "soc=SM8650,SM8550"], config_dirs=[lab])
    reason = "no device of pair is a SM8550 or a simulator host"
    assert {(cell.request.names[2], cell.request.names[-1]): cell.impossible for cell in plan.cells} == {
        ("SM8650", "pair"): None, ("SM8650", "all"): None, ("SM8550", "pair"): reason, ("SM8550", "all"): None,
    }  # fmt: skip


REFUSED = {
    "farm=torn": "farm torn: device=tow: no such device; did you mean two? one of aihub, local, one, three, two",
    "farm=empty": "farm.devices=[]: farm empty has no devices",
    "farm=nowhere": "farm=nowhere: no such farm; one of all, empty, local, pair, torn",
}


@pytest.mark.parametrize("override", REFUSED)
def test_a_wrong_farm_is_refused_in_one_line(lab: Path, override: str) -> None:
    with pytest.raises(RequestError) as caught:
        load([override], config_dirs=[lab])
    assert str(caught.value) == REFUSED[override]


def test_a_request_has_a_farm_or_a_device_not_both(lab: Path) -> None:
    with pytest.raises(RequestError, match=r"^device=, farm=: a cell goes to a device or to a farm"):
        load(["farm=pair", "device=one"], config_dirs=[lab])
