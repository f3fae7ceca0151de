"""The command `qnnsweep devices`: the facts and the problems of each device."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from qnnsweep.tasks.devices.farm import Farm
from qnnsweep.tasks.errors import DeviceError
from qnnsweep.tasks.storage.atomic import owner_of
from tests.devices.bare_python import bare_python
from tests.devices.bench import Bench
from tests.devices.loopback import write_farm


def devices(bench: Bench, *overrides: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit code and the devices of `qnnsweep devices --json`."""
    write_farm(bench.folder / "conf", [bench.phone], [bench.board])
    command = ["devices", "--json", f"--config-dir={bench.folder / 'conf'}", f"artifacts={bench.folder}", *overrides]
    ran = subprocess.run(
        [sys.executable, "-c", "from qnnsweep.flows.cli.main import main; main()", *command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.stderr == ""
    return ran.returncode, {row["device"]: row for row in json.loads(ran.stdout.splitlines()[-1])["devices"]}


def test_a_usable_farm_is_shown_with_all_facts_of_its_devices(bench: Bench) -> None:
    (bench.phone.data / "properties").write_text("ro.soc.model=SM8650\nro.build.fingerprint=maker/phone:14\n")
    bench.phone.sense(31.4)
    battery = bench.phone.data / "sys" / "class" / "power_supply" / "battery"
    battery.mkdir(parents=True)
    for name, value in {"capacity": 83, "current_now": -500_000, "voltage_now": 4_000_000}.items():
        (battery / name).write_text(f"{value}\n")
    exit_code, rows = devices(bench, "farm=loopback")
    assert exit_code == 0
    assert list(rows) == ["phone_1", "board_1", "bench"]
    phone = rows["phone_1"]
    assert {key: value for key, value in phone.items() if key != "free_mib"} == {
        "device": "phone_1",
        "transport": "adb",
        "address": bench.phone.serial,
        "tags": [],
        "reachable": True,
        "problem": None,
        "soc_asked": None,
        "soc_read": "SM8650",
        "arch": "x86_64",
        "os_build": "maker/phone:14",
        "celsius": 31.4,
        "battery_percent": 83,
        "power_mw": 2000.0,
        "runner": f"python {platform.python_version()}, executorch {metadata.version('executorch')}",
        "qnn": metadata.version("onnxruntime-qnn"),
        "busy": None,
        "quarantined": None,
    }
    assert phone["free_mib"] > 0


def test_a_problem_of_a_device_is_shown_with_its_remedy(bench: Bench) -> None:
    (bench.phone.data / "properties").write_text("ro.soc.model=SM8550\n")
    bench.board.kill()
    exit_code, rows = devices(bench, "farm=loopback", "device.soc=SM8650")
    assert exit_code == 4
    assert rows["phone_1"]["problem"] == "its SoC is SM8550, not SM8650: correct device.soc"
    assert rows["board_1"]["reachable"] is False
    assert rows["board_1"]["problem"].startswith(f"127.0.0.1:{bench.board.port} cannot be reached: ")
    assert rows["board_1"]["problem"].endswith("; check the device's cable, network and power")


def test_a_device_with_onnxruntime_shows_its_version_or_the_command_that_installs_what_is_missing(bench: Bench) -> None:
    exit_code, rows = devices(bench, "farm=loopback", "device.runner=onnxruntime")
    assert exit_code == 0
    versions = f"python {platform.python_version()}, onnxruntime {metadata.version('onnxruntime')}"
    assert {(row["runner"], row["qnn"], row["problem"]) for row in rows.values()} == {
        (versions, metadata.version("onnxruntime-qnn"), None)
    }
    python = bare_python(bench.folder / "python", "numpy")
    exit_code, rows = devices(bench, "device=board_1", "device.runner=onnxruntime", f"device.python={python}")
    assert exit_code == 4
    wheel = f"onnxruntime-qnn=={metadata.version('onnxruntime-qnn')}"
    line = f"{python} lacks packages: run `{python} -m pip install onnxruntime {wheel}` there"
    assert rows["board_1"]["problem"] == line


def test_holders_and_quarantined_devices_are_shown(bench: Bench) -> None:
    farm = Farm(host_environment={}, folder=bench.folder / "devices")  # of a run with that artifacts folder
    farm.quarantine("board_1", DeviceError("it is gone"))
    with farm.lease([replace(bench.over_adb, work_folder="/data/local/tmp/qnnsweep")]) as device:
        exit_code, rows = devices(bench, "device=phone_1,board_1")
    assert exit_code == 4
    owner = owner_of(Path(device.lease_folder).name)
    assert owner is not None
    assert rows["phone_1"]["busy"] == f"{owner.host}-{owner.pid}"
    assert rows["board_1"]["quarantined"] == "it is gone"
