"""A device is hired for the cells that need it, and is given back whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from qnnsweep.conf.devices import DeviceConfig, LeaseConfig
from qnnsweep.tasks.devices.farm import Farm
from qnnsweep.tasks.errors import DeviceError
from tests.devices.bench import WRITES, Bench, when

# A farm with one device. Its faults are the files of its folder.
FARM = """
import json, os, sys, time
from pathlib import Path
verb, folder, endpoint = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
with (folder / "log").open("a") as log:
    name, line, soc = (os.environ.get(f"QNNSWEEP_LEASE{end}", "") for end in ("_NAME", "", "_SOC"))
    log.write(json.dumps([verb, name, line, time.time()]) + "\\n")
fault = folder / verb
if fault.exists():
    text = fault.read_text()
    if (folder / "once").exists():
        fault.unlink()
    exec(text)
if verb == "acquire":
    print("the farm looks for a device")
    print(endpoint)
"""


@pytest.fixture
def farm_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "cloud"
    folder.mkdir()
    (folder / "farm.py").write_text(FARM)
    return folder


def log(folder: Path) -> list[list[Any]]:
    file = folder / "log"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def verbs(folder: Path) -> list[str]:
    return [verb for verb, *_ in log(folder)]


def hired(config: DeviceConfig, folder: Path, **settings: Any) -> DeviceConfig:
    """Return a configuration of the device that hires it from the farm."""
    endpoint = {"serial": config.address, "adb_server": config.adb_server}
    if config.name == "board":
        endpoint = {"ssh": config.address}
    words = [sys.executable, str(folder / "farm.py")]
    commands = {verb: [*words, verb, str(folder), json.dumps(endpoint)] for verb in ("acquire", "extend", "release")}
    lease = LeaseConfig(**{**commands, "idle_s": 1.0, "release_s": 5.0, **settings})
    return replace(config, address=None, adb_server=None, lease=lease)


def wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture(params=["over_adb", "over_ssh"])
def config(request: pytest.FixtureRequest, bench: Bench) -> DeviceConfig:
    return getattr(bench, request.param)


def test_one_hire_serves_cells_and_ends_when_no_cell_needs_it(
    bench: Bench, config: DeviceConfig, farm_folder: Path
) -> None:
    phone = hired(config, farm_folder, idle_s=4.0, extend_every_s=1.0)
    for _ in range(2):
        assert bench.measure(bench.bundle(WRITES), phone).device == config.name
    wait_for(lambda: "release" in verbs(farm_folder))
    assert [verb for verb in verbs(farm_folder) if verb != "extend"] == ["acquire", "release"]
    assert verbs(farm_folder).count("extend") >= 2
    names = {name for _, name, *_ in log(farm_folder)}
    lines = [line for _, _, line, _ in log(farm_folder)]
    assert len(names) == 1
    assert lines[0] == ""
    assert json.loads(lines[-1]) in (
        {"serial": config.address, "adb_server": config.adb_server},
        {"ssh": config.address},
    )
    wait_for(lambda: not list((bench.folder / "farm" / "hired").iterdir()))
    assert bench.measure(bench.bundle(WRITES), phone).device == config.name
    assert verbs(farm_folder).count("acquire") == 2


REFUSALS = {
    "import sys; sys.exit('quota: 0 minutes are left')": "exit code 1: quota: 0 minutes are left",
    "time.sleep(60)": "it did not end within 2 s",
    "print('no JSON'); sys.exit()": "must be JSON such as",
    "print(json.dumps({'serial': '-x'})); sys.exit()": "must be JSON such as",
    "print(json.dumps({'serial': 's', 'adb_server': '; rm -rf ~'})); sys.exit()": "must be JSON such as",
    "print(json.dumps({'ssh': '-oProxyCommand=x'})); sys.exit()": "must be JSON such as",
    "print('[' * 100000); sys.exit()": "must be JSON such as",
    "sys.exit()": "it printed no line with the endpoint",
}


@pytest.mark.parametrize("fault", REFUSALS)
def test_a_farm_that_gives_no_device_costs_the_device_and_is_told_to_release(
    bench: Bench, farm_folder: Path, fault: str
) -> None:
    (farm_folder / "acquire").write_text(fault)
    phone = hired(bench.over_adb, farm_folder, acquire_s=2.0)
    assert bench.measure(bench.bundle(WRITES), phone, bench.here).device == "here"
    assert REFUSALS[fault] in str(bench.farm.quarantined["phone"])
    wait_for(lambda: verbs(farm_folder) == ["acquire", "release"])
    wait_for(lambda: not list((bench.folder / "farm" / "hired").iterdir()))


def test_a_device_that_the_farm_takes_back_in_mid_run_is_hired_again(bench: Bench, farm_folder: Path) -> None:
    marker = farm_folder / "marker"
    first = f"marker = Path({str(marker)!r})\nif not marker.exists():\n    marker.touch()\n    time.sleep(30)\n"
    taken = when(marker.exists, lambda: [process.kill() for process in bench.board.processes])
    board = hired(bench.over_ssh, farm_folder)
    assert bench.measure(bench.bundle(f"{WRITES}\nimport time\n{first}"), board).device == "board"
    taken.join()
    assert bench.farm.quarantined == {}
    wait_for(lambda: verbs(farm_folder).count("release") == 2)
    assert verbs(farm_folder).count("acquire") == 2


def test_a_wrong_serial_is_hired_three_times_at_most(bench: Bench, farm_folder: Path) -> None:
    wrong = replace(bench.over_adb, address="127.0.0.1:1")
    assert bench.measure(bench.bundle(WRITES), hired(wrong, farm_folder), bench.here).device == "here"
    wait_for(lambda: verbs(farm_folder).count("release") == verbs(farm_folder).count("acquire"))
    assert verbs(farm_folder).count("acquire") <= 3


def test_a_release_that_hangs_is_repeated(bench: Bench, farm_folder: Path) -> None:
    (farm_folder / "release").write_text("time.sleep(60)")
    (farm_folder / "once").touch()
    bench.measure(bench.bundle(WRITES), hired(bench.over_ssh, farm_folder, release_s=1.0))
    wait_for(lambda: verbs(farm_folder).count("release") == 2)
    wait_for(lambda: not list((bench.folder / "farm" / "hired").iterdir()))


def test_the_budget_of_a_run_is_not_exceeded(bench: Bench, farm_folder: Path) -> None:
    board = hired(bench.over_ssh, farm_folder, minutes=0.05, idle_s=60.0)
    bench.measure(bench.bundle(WRITES), board)
    wait_for(lambda: verbs(farm_folder)[-1] == "release", 10)
    (_, _, _, began), (_, _, _, ended) = log(farm_folder)
    assert ended - began < 6
    with pytest.raises(DeviceError, match=r"device\.lease\.minutes=0\.05 of this run are used up"):
        bench.measure(bench.bundle(WRITES), board)


SWEEP = """
import sys, time
from pathlib import Path
from qnnsweep.tasks.devices.farm import Farm
from tests.devices.test_lock import config_from
farm = Farm(host_environment={}, folder=Path(sys.argv[2]))
with farm.lease([config_from(sys.argv[1])]) as device:
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("victims", ["sweep", "sweep and janitor"])
def test_a_device_is_given_back_after_its_sweep_was_killed(bench: Bench, farm_folder: Path, victims: str) -> None:
    board = hired(bench.over_ssh, farm_folder, idle_s=600.0)
    text, folder = OmegaConf.to_yaml(OmegaConf.structured(board)), bench.folder / "killed"
    with subprocess.Popen(
        [sys.executable, "-c", SWEEP, text, str(folder)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    ) as sweep:
        assert sweep.stdout is not None
        assert sweep.stdout.readline() == "held\n"
        (file,) = (folder / "hired").glob("*.json")
        if victims != "sweep":
            os.kill(json.loads(file.read_text())["pid"], signal.SIGKILL)
        sweep.kill()
    if victims != "sweep":
        assert verbs(farm_folder) == ["acquire"]
        canary = bench.folder / "canary"  # whoever can write into the store cannot choose what runs
        left = json.loads(file.read_text()) | {"release": ["touch", str(canary)], "line": f"$(touch {canary})"}
        file.write_text(json.dumps(left))
        with Farm(host_environment={}, folder=folder).lease([board]):
            pass
    wait_for(lambda: "release" in verbs(farm_folder), 10)
    wait_for(lambda: not file.exists())
    (_, name, *_), *_ = log(farm_folder)
    assert [verb for verb, of, *_ in log(farm_folder) if of == name] == ["acquire", "release"]
    assert not (bench.folder / "canary").exists()
