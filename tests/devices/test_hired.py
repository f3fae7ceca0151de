"""A device is hired for the cells that need it, and is given back whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from qnnsweep.conf.devices import DeviceConfig
from qnnsweep.conf.schema import SocConfig
from qnnsweep.tasks.devices.farm import Farm
from qnnsweep.tasks.errors import DeviceError
from tests.devices.bench import WRITES, Bench, when
from tests.devices.cloud import Cloud
from tests.flows.cluster import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(tmp_path / "cloud").start()


@pytest.fixture(params=["over_adb", "over_ssh"])
def config(request: pytest.FixtureRequest, bench: Bench) -> DeviceConfig:
    return getattr(bench, request.param)


def test_one_hire_serves_cells_and_ends_when_no_cell_needs_it(bench: Bench, config: DeviceConfig, cloud: Cloud) -> None:
    phone = cloud.hired(config, idle_s=4.0, extend_every_s=1.0)
    for _ in range(2):
        assert bench.measure(bench.bundle(WRITES), phone).device == config.name
    wait_until(lambda: "release" in cloud.commands, 30, "the device is given back")
    assert [verb for verb in cloud.commands if verb != "extend"] == ["acquire", "release"]
    assert cloud.commands.count("extend") >= 2
    names = {entry.name for entry in cloud.log}
    lines = [entry.line for entry in cloud.log]
    assert len(names) == 1
    assert lines[0] == ""
    assert json.loads(lines[-1]) in (
        {"serial": config.address, "adb_server": config.adb_server},
        {"ssh": config.address},
    )
    wait_until(lambda: not list((bench.folder / "farm" / "hired").iterdir()), 30, "no file tells of a hire")
    assert bench.measure(bench.bundle(WRITES), phone).device == config.name
    assert cloud.commands.count("acquire") == 2


def test_a_hire_is_for_one_soc_and_a_cell_of_another_soc_waits_until_it_has_ended(bench: Bench, cloud: Cloud) -> None:
    cloud.fail(
        "acquire",
        f"Path({str(bench.phone.data / 'properties')!r}).write_text('ro.soc.model=' + os.environ['QNNSWEEP_SOC'])",
    )
    cloud.fail("release", "time.sleep(1)")  # the farm has no second device
    phone = replace(cloud.hired(bench.over_adb, idle_s=2.0), soc="probe")
    bundle = bench.bundle(WRITES)
    socs = {name: SocConfig(name=name, arch=75, vtcm_mib=8) for name in ("SM8650", "SM8750")}
    order = ["SM8650", "SM8750", "SM8650", "SM8750", "SM8650"]
    with ThreadPoolExecutor(len(order)) as threads:
        captures = list(threads.map(lambda name: bench.measure(bundle, phone, soc=socs[name]), order))
    commands = [capture.results[0].command for capture in captures]
    hires = {(command.hire, name) for command, name in zip(commands, order, strict=True)}
    assert sorted(name for _, name in hires) == ["SM8650", "SM8750"], "all cells of a SoC have the same hire"
    in_turn = ["acquire", "acquired", "release", "released"] * 2
    wait_until(lambda: [entry.word for entry in cloud.log] == in_turn, 30, "the device is given back")
    for hire, _ in hires:
        began, *_, ended = (entry.time_s for entry in cloud.log if entry.name == hire)
        hired_s = [command.hired_s for command in commands if command.hire == hire if command.hired_s is not None]
        assert 0 < max(hired_s) < ended - began + 0.5, "it ends before the device is given back"


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
    bench: Bench, cloud: Cloud, fault: str
) -> None:
    cloud.fail("acquire", fault)
    phone = cloud.hired(bench.over_adb, acquire_s=2.0)
    assert bench.measure(bench.bundle(WRITES), phone, bench.here).device == "here"
    assert REFUSALS[fault] in str(bench.farm.quarantined["phone"])
    wait_until(lambda: cloud.commands == ["acquire", "release"], 30, "the device is given back")
    wait_until(lambda: not list((bench.folder / "farm" / "hired").iterdir()), 30, "no file tells of a hire")


def test_a_device_that_the_farm_takes_back_in_mid_run_is_hired_again(bench: Bench, cloud: Cloud) -> None:
    marker = cloud.folder / "marker"
    first = f"marker = Path({str(marker)!r})\nif not marker.exists():\n    marker.touch()\n    time.sleep(30)\n"
    taken = when(marker.exists, lambda: [process.kill() for process in bench.board.processes])
    board = cloud.hired(bench.over_ssh)
    assert bench.measure(bench.bundle(f"{WRITES}\nimport time\n{first}"), board).device == "board"
    taken.join()
    assert bench.farm.quarantined == {}
    wait_until(lambda: cloud.commands.count("release") == 2, 30, "the device is given back")
    assert cloud.commands.count("acquire") == 2


def test_a_wrong_serial_is_hired_three_times_at_most(bench: Bench, cloud: Cloud) -> None:
    wrong = replace(bench.over_adb, address="127.0.0.1:1")
    assert bench.measure(bench.bundle(WRITES), cloud.hired(wrong), bench.here).device == "here"
    wait_until(lambda: cloud.commands.count("release") == cloud.commands.count("acquire"), 30, "all are given back")
    assert cloud.commands.count("acquire") <= 3


def test_a_release_that_hangs_is_repeated(bench: Bench, cloud: Cloud) -> None:
    cloud.fail("release", "time.sleep(60)", once=True)
    bench.measure(bench.bundle(WRITES), cloud.hired(bench.over_ssh, release_s=1.0))
    wait_until(lambda: cloud.commands.count("release") == 2, 30, "the device is given back")
    wait_until(lambda: not list((bench.folder / "farm" / "hired").iterdir()), 30, "no file tells of a hire")


def test_the_budget_of_a_run_is_not_exceeded(bench: Bench, cloud: Cloud) -> None:
    board = cloud.hired(bench.over_ssh, minutes=0.05, idle_s=60.0)
    bench.measure(bench.bundle(WRITES), board)
    wait_until(lambda: cloud.commands[-1] == "release", 10, "the device is given back")
    assert cloud.commands == ["acquire", "release"]
    assert cloud.log[2].time_s - cloud.log[0].time_s < 6
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


def test_a_device_whose_janitor_was_killed_has_another_one_until_no_cell_needs_it(bench: Bench, cloud: Cloud) -> None:
    board = cloud.hired(bench.over_ssh)

    def janitor() -> int:
        (file,) = (bench.folder / "farm" / "hired").glob("*.json")
        return int(json.loads(file.read_text())["pid"])

    with bench.farm.lease([board]):
        first = janitor()
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: janitor() != first, 30, "another janitor keeps the device")
    assert bench.measure(bench.bundle(WRITES), board).device == "board"
    assert cloud.commands == ["acquire"]
    wait_until(lambda: cloud.commands == ["acquire", "release"], 30, "the device is given back")
    wait_until(lambda: not list((bench.folder / "farm" / "hired").iterdir()), 30, "no file tells of a hire")


@pytest.mark.parametrize("victims", ["sweep", "sweep and janitor"])
def test_a_device_is_given_back_after_its_sweep_was_killed(bench: Bench, cloud: Cloud, victims: str) -> None:
    board = cloud.hired(bench.over_ssh, idle_s=600.0)
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
        assert cloud.commands == ["acquire"]
        canary = bench.folder / "canary"  # whoever can write into the store cannot choose what runs
        left = json.loads(file.read_text()) | {"release": ["touch", str(canary)], "line": f"$(touch {canary})"}
        file.write_text(json.dumps(left))
        next_hire = replace(board, lease=replace(board.lease, idle_s=0.5))
        with Farm(host_environment={}, folder=folder).lease([next_hire]):
            pass
    wait_until(lambda: "release" in cloud.commands, 10, "the device is given back")
    wait_until(lambda: not file.exists(), 30, "no file tells of a hire")
    first = [entry.word for entry in cloud.log if entry.name == cloud.log[0].name]
    assert first == ["acquire", "acquired", "release", "released"]
    assert not (bench.folder / "canary").exists()
