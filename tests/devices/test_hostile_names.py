"""Text with a meaning for a shell, a path or a terminal is only a name on a device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qnnsweep.conf.devices import DeviceConfig
from qnnsweep.conf.load import load
from qnnsweep.tasks.errors import DeviceError, RequestError
from tests.devices.bench import WRITES, Bench

pytestmark = pytest.mark.slow

HOSTILE = [
    "; touch CANARY; rm -rf ~",
    "$(touch CANARY)",
    "`touch CANARY`",
    "' ; touch CANARY ; '",
    '" ; touch CANARY ; "',
    "a\ntouch CANARY\n",
    "-rf",
    "--",
    "*",
    "名前 é 🐉",
]


def armed(bench: Bench, text: str) -> tuple[str, list[Path]]:
    """Return the text with the path of a canary file in it, and all paths where the file could appear."""
    return text.replace("CANARY", "/data/canary"), [bench.phone.data / "canary", Path("/data/canary")]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("config_name", ["over_adb", "over_ssh"])
def test_in_every_field_of_a_device_it_is_only_text(bench: Bench, config_name: str, text: str) -> None:
    config: DeviceConfig = getattr(bench, config_name)
    hostile, canaries = armed(bench, text)
    prepared = replace(
        config,
        name=hostile,
        work_folder=f"{config.work_folder}/{hostile.replace('/', '_')}",
        environment={"HOSTILE": hostile},
        tags=[hostile],
    )
    code = f"import os\nassert os.environ['HOSTILE'] == {hostile!r}\n{WRITES}"
    assert bench.measure(bench.bundle(code), prepared).device == hostile
    assert [canary for canary in canaries if canary.exists()] == []
    missing = replace(prepared, python=hostile)
    with pytest.raises(DeviceError):
        bench.measure(bench.bundle(WRITES), replace(missing, name="other"))
    assert [canary for canary in canaries if canary.exists()] == []


@pytest.mark.parametrize("text", HOSTILE)
def test_as_an_address_it_is_an_error(bench: Bench, text: str) -> None:
    hostile, canaries = armed(bench, text)
    with pytest.raises(DeviceError):
        bench.measure(bench.bundle(WRITES), replace(bench.over_adb, address=hostile, deadline_s=5))
    assert [canary for canary in canaries if canary.exists()] == []


REFUSED = {
    "model.name": "m" * 300,
    "device.name": "d" * 300,
    "device.work_folder": "../../x",
    "device.address": "-oProxyCommand=touch canary",
    "device.ssh.jump": "-oProxyCommand=touch canary",
    "device.adb_server": "; rm -rf ~",
}


@pytest.mark.parametrize("key", REFUSED)
def test_an_impossible_value_is_refused_in_one_short_line(key: str) -> None:
    remote = [
        "device.transport=ssh",
        "device.address=host",
        "device.work_folder=/var/tmp/qnnsweep",
        "device.python=python3",
    ]
    overrides = [line for line in remote if not line.startswith(f"{key}=")]
    with pytest.raises(RequestError) as refused:
        load([*overrides, f"{key}='{REFUSED[key]}'"])
    line = str(refused.value)
    assert line.startswith(key)
    assert "\n" not in line
    assert len(line) < 400


@pytest.mark.parametrize("folder", ["/", "/data", "relative/folder", "/data/../etc", "~/qnnsweep"])
def test_a_work_folder_that_others_may_use_is_refused(folder: str) -> None:
    with pytest.raises(RequestError, match=r"^device\.work_folder="):
        load(
            ["device.transport=adb", "device.address=serial", "device.python=python3", f"device.work_folder='{folder}'"]
        )
