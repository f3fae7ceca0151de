"""Sweeps over a farm of real devices: sharing, leases, and recovery from a killed sweep."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.devices.loopback import Adbd, AdbServer, Sshd, running, write_farm
from tests.flows.sweep_outputs import read_table, result_of
from tests.program import Program

pytestmark = [pytest.mark.slow, pytest.mark.toolchain, pytest.mark.timeout(2400)]

SECRET = "correct-horse-battery-staple"
DIGITS = (
    *("model=digits_cnn", "model.evaluation.count=4", "model.calibration.count=32"),
    *("measure.cures=0", "limits.parallel=2"),
)
# A runner that logs on the device when it begins and ends, and runs Python in between.
TIMED = """\
#!/bin/sh
echo "begin $(date +%s.%N)" >>/data/times
{python} "$@"
code=$?
echo "end $(date +%s.%N)" >>/data/times
exit $code
"""
SLOW = TIMED.replace("{python}", "sleep 600; {python}")


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory, phones: tuple[Adbd, Adbd], board: Sshd) -> Path:
    """Write the farm `loopback`, with a secret in the devices' environment."""
    folder = tmp_path_factory.mktemp("conf")
    write_farm(folder, phones[:1], [board], environment={"TOKEN": SECRET})
    return folder


@pytest.fixture
def timed(tmp_path: Path, adb_server: AdbServer) -> Iterator[tuple[Adbd, Path]]:
    """Start a phone whose runner logs its times, and write the configuration of this phone."""
    phone = Adbd(folder=tmp_path / "phone", server=adb_server)
    phone.folder.mkdir()
    with running(phone):
        runner = phone.data / "bin" / "timed"
        runner.write_text(TIMED.format(python=sys.executable))
        runner.chmod(0o755)
        write_farm(tmp_path / "conf", [phone], [], python="/data/bin/timed")
        yield phone, tmp_path / "conf"


def cells(artifacts: Path, ran: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return read_table(artifacts, "cells", result_of(ran)["run_id"])


def spans(phone: Adbd) -> list[tuple[float, float]]:
    """Return the begin and the end of each run of the runner, from the phone's log."""
    lines = [line.split() for line in (phone.data / "times").read_text().splitlines()]
    assert [word for word, _ in lines] == ["begin", "end"] * (len(lines) // 2), lines
    times = [float(when) for _, when in lines]
    return list(zip(times[::2], times[1::2], strict=True))


def test_one_program_gives_bit_equal_outputs_over_adb_over_ssh_and_here_and_is_sent_once(
    served_program: Program, artifacts: Path, conf: Path
) -> None:
    command = ["run", "--json", f"--config-dir={conf}", *DIGITS, "scheme=8a8w", "device=phone_1,board_1,bench"]
    first, second = (served_program.run(*command, f"artifacts={artifacts}") for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    rows = cells(artifacts, first)
    assert [(row["device"], row["outcome"]) for row in rows] == [
        ("phone_1", "passed"), ("board_1", "passed"), ("bench", "passed"),
    ]  # fmt: skip
    assert len({row["outputs_sha256"] for row in rows}) == 1
    sent = {row["sent_bytes"] for row in rows}
    assert len(sent) == 1
    assert sent.pop() > rows[0]["pte_bytes"]
    again = cells(artifacts, second)
    assert [row["sent_bytes"] for row in again] == [0, 0, 0]
    assert {row["outputs_sha256"] for row in again} == {rows[0]["outputs_sha256"]}


def test_the_cells_of_a_sweep_use_the_whole_farm_and_no_secret_is_written_anywhere(
    served_program: Program, artifacts: Path, conf: Path
) -> None:
    ran = served_program.run(
        "run", "--json", f"--config-dir={conf}", *DIGITS, "scheme=8a8w,16a8w", "soc=SM8550,SM8650", "farm=loopback",
        f"artifacts={artifacts}",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert {row["device"] for row in cells(artifacts, ran)} == {"phone_1", "board_1", "bench"}
    for folder in (artifacts, Path(served_program.environment["PREFECT_HOME"])):
        leaks = [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
        assert leaks == []
    assert SECRET not in ran.stdout + ran.stderr


@pytest.mark.night
def test_two_sweeps_at_once_never_overlap_on_a_device_that_has_two_names(
    served_program: Program, tmp_path: Path, timed: tuple[Adbd, Path]
) -> None:
    phone, conf = timed
    again = {"name": "again", "address": f"localhost:{phone.port}", "work_folder": "/data/local/tmp/again"}
    described = yaml.safe_load((conf / "device" / "phone_1.yaml").read_text())
    (conf / "device" / "again.yaml").write_text(yaml.safe_dump(described | again))
    command = ["run", "--json", f"--config-dir={conf}", *DIGITS, "soc=SM8650", "scheme=8a8w,fp16"]
    both = [
        served_program.start(*command, f"device={name}", f"artifacts={tmp_path / name}")
        for name in ("phone_1", "again")
    ]
    outputs = [process.communicate(timeout=800)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    runs = sorted(spans(phone))
    assert len(runs) == 8  # in each sweep, a shipping and a debug program for each of two cells
    for (_, end), (begin, _) in itertools.pairwise(runs):
        assert begin >= end
    tables = [
        [
            {name: row[name] for name in ("scheme", "outcome", "outputs_sha256", "diagnosis")}
            for row in read_table(tmp_path / name, "cells", json.loads(out.splitlines()[-1])["run_id"])
        ]
        for name, out in zip(("phone_1", "again"), outputs, strict=True)
    ]
    assert [row["outcome"] for row in tables[0]] == ["passed", "passed"]
    assert tables[0] == tables[1]


def test_a_device_is_free_again_after_its_holder_was_killed(
    served_program: Program, artifacts: Path, timed: tuple[Adbd, Path]
) -> None:
    phone, conf = timed
    runner = phone.data / "bin" / "timed"
    quick = runner.read_text()
    runner.write_text(SLOW.format(python=sys.executable))
    command = ["run", "--json", f"--config-dir={conf}", *DIGITS, "soc=SM8650", "device=phone_1", "scheme=8a8w"]
    with served_program.start(*command, f"artifacts={artifacts}") as holder:
        try:
            while not (phone.data / "times").exists():
                assert holder.poll() is None
                time.sleep(0.2)
            commands = [(process, process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
            sleepers = [process for process, argv in commands if argv[:2] == ["/bin/sh", "/data/bin/timed"]]
            assert sleepers
        finally:
            os.killpg(holder.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(sleepers, timeout=30)
    assert alive == []
    runner.write_text(quick)
    (phone.data / "times").unlink()
    ran = served_program.run(*command, f"artifacts={artifacts}")
    assert ran.returncode == 0, ran.stderr
    assert len(spans(phone)) == 2
