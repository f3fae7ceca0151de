"""The fault matrix: for each fault the blamed part, the quarantined device, and the sibling that finishes the cell."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from qnnsweep.conf.devices import DeviceConfig
from qnnsweep.conf.schema import SocConfig
from qnnsweep.tasks.errors import DeviceError, DeviceProblem, MachineFault, RunnerFailed
from qnnsweep.tasks.records import Bundle
from tests.devices.bench import WRITES, Bench, when
from tests.devices.refusing_adbd import RefusingAdbd

SM8650 = SocConfig(name="SM8650", arch=75, vtcm_mib=8)
SLEEPS = "import time; open('started', 'w').close(); time.sleep(600)"


def exists(path: Path) -> Callable[[], bool]:
    """Return a condition: some file matches the pattern."""
    return lambda: any(path.parents[3].glob(str(path.relative_to(path.parents[3]))))


def blobs(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("blobs/*") if path.is_file()]


def assert_blobs_are_intact(folder: Path) -> None:
    assert [path for path in blobs(folder) if hashlib.sha256(path.read_bytes()).hexdigest() != path.name] == []


def assert_no_runner_is_left(bench: Bench) -> None:
    runners: list[psutil.Process] = []
    for _ in range(200):
        runners = [process for process in psutil.process_iter() if is_runner(process)]
        if not runners:
            return
        time.sleep(0.1)
    raise AssertionError(runners)


def is_runner(process: psutil.Process) -> bool:
    try:
        return any(word.startswith("--input_list_path=../../../blobs/") for word in process.cmdline()) and (
            "qnnsweep" in process.cwd()
        )
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


BREAKS: dict[str, Callable[[Bench], None]] = {
    "the phone is gone": lambda bench: bench.phone.kill(),
    "the adb server is gone": lambda bench: bench.server.kill(),
    "the phone hangs": lambda bench: bench.phone.freeze(),
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", BREAKS)
@pytest.mark.parametrize("moment", ["before", "while it runs"])
def test_a_cell_is_finished_by_a_sibling_when_the_phone_breaks(bench: Bench, fault: str, moment: str) -> None:
    phone = replace(bench.over_adb, deadline_s=8)
    if moment == "before":
        BREAKS[fault](bench)
        bundle, breaking = bench.bundle(WRITES), None
    else:
        # It hangs in the phone's /data, and writes outputs anywhere else.
        bundle = bench.bundle(f"import os\nif os.getcwd().startswith('/data/'):\n    {SLEEPS}\n{WRITES}")
        started = bench.phone.data / "local" / "qnnsweep" / "leases" / "*" / "shipping" / "started"
        breaking = when(exists(started), lambda: BREAKS[fault](bench))
    capture = bench.measure(bundle, phone, bench.over_ssh)
    assert capture.device == "board"
    assert set(bench.farm.quarantined) == {"phone"}
    assert bench.farm.quarantined["phone"].problem in (DeviceProblem.LOST, DeviceProblem.HUNG, DeviceProblem.OFFLINE)
    if breaking is not None:
        breaking.join()
    if fault == "the phone hangs":
        bench.phone.thaw()
    assert_no_runner_is_left(bench)
    # It stays excluded for this run, even if it works again by now.
    assert bench.measure(bench.bundle(WRITES), phone, bench.here).device == "here"


def test_a_cell_is_finished_by_a_sibling_when_the_phone_is_lost_during_deploy(bench: Bench) -> None:
    arriving = bench.phone.data / "local" / "qnnsweep" / "leases" / "*" / ".incoming-*" / "*"
    breaking = when(exists(arriving), bench.phone.kill)
    capture = bench.measure(bench.bundle(WRITES, ballast=200_000_000), bench.over_adb, bench.here)
    breaking.join()
    assert capture.device == "here"
    assert bench.farm.quarantined["phone"].problem in (DeviceProblem.LOST, DeviceProblem.OFFLINE)
    assert blobs(bench.phone.data) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("demands_key", "problem"), [(True, DeviceProblem.UNAUTHORIZED), (False, DeviceProblem.OFFLINE)]
)
def test_a_phone_that_refuses_the_host_is_quarantined_with_the_problem(
    bench: Bench, demands_key: bool, problem: DeviceProblem
) -> None:
    refusing = RefusingAdbd(demands_key=demands_key)
    phone = replace(bench.over_adb, address=f"127.0.0.1:{refusing.port}", deadline_s=20)
    assert bench.measure(bench.bundle(WRITES), phone, bench.here).device == "here"
    refusing.close()
    assert bench.farm.quarantined["phone"].problem is problem


def test_a_board_with_another_host_key_is_refused(bench: Bench) -> None:
    key = bench.folder / "other"
    shutil.copy(bench.board.key.with_suffix(".pub"), key)
    known = bench.folder / "known_hosts"
    known.write_text(f"[127.0.0.1]:{bench.board.port} {key.read_text()}")
    board = replace(bench.over_ssh, ssh=replace(bench.over_ssh.ssh, known_hosts=str(known)))
    assert bench.measure(bench.bundle(WRITES), board, bench.here).device == "here"
    assert bench.farm.quarantined["board"].problem is DeviceProblem.HOST_KEY
    assert str(bench.farm.quarantined["board"]).startswith("wrong host key: 127.0.0.1:")


def test_a_board_with_an_unknown_host_key_is_refused(bench: Bench) -> None:
    known = bench.folder / "nobody yet"
    strict = replace(bench.over_ssh, ssh=replace(bench.over_ssh.ssh, known_hosts=str(known)))
    assert bench.measure(bench.bundle(WRITES), strict, bench.here).device == "here"
    assert bench.farm.quarantined["board"].problem is DeviceProblem.HOST_KEY
    assert str(bench.farm.quarantined["board"]).startswith("unknown host key: 127.0.0.1:")


def test_a_wrong_password_is_refused_and_not_repeated(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOARD_PASSWORD", "correct-horse")
    login = replace(bench.over_ssh.ssh, key_file=None, password_variable="BOARD_PASSWORD")
    board = replace(bench.over_ssh, ssh=login)
    assert bench.measure(bench.bundle(WRITES), board, bench.here).device == "here"
    why = bench.farm.quarantined["board"]
    assert why.problem is DeviceProblem.LOGIN
    assert "refuses the login of root" in str(why)
    assert "correct-horse" not in str(why)


def test_the_digest_of_the_serial_is_in_the_capture_and_is_read_at_every_lease(bench: Bench) -> None:
    bundle, ids = bench.bundle(WRITES), []
    for serial in ("1a2b3c", "1a2b3c", "ffff"):
        (bench.phone.data / "properties").write_text(f"ro.serialno={serial}\n")
        ids.append(bench.measure(bundle, bench.over_adb).device_id)
    assert ids == [hashlib.sha256(serial.encode()).hexdigest()[:16] for serial in ("1a2b3c", "1a2b3c", "ffff")]
    assert bench.measure(bundle, bench.here).device_id is None


def test_a_full_disk_is_a_fault_of_the_device_and_leaves_no_partial_file(bench: Bench) -> None:
    phone = replace(bench.over_adb, work_folder="/data/small/qnnsweep", least_free_mib=0)
    capture = bench.measure(bench.bundle(WRITES, ballast=40_000_000), phone, bench.here)
    assert capture.device == "here"
    assert bench.farm.quarantined["phone"].problem is DeviceProblem.FULL
    assert blobs(bench.phone.small) == []


def test_a_disk_that_fills_during_the_transfer_is_a_fault_of_the_device(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(40_000_000))
    with (
        bench.farm.lease([bench.over_adb]) as device,
        pytest.raises(DeviceError, match="No space left on device") as full,
    ):
        device.transport.push(tmp_path / "large", "/data/small/file")
    assert full.value.problem is DeviceProblem.FULL
    assert list(bench.phone.small.iterdir()) == []


@pytest.mark.parametrize("config_name", ["over_adb", "over_ssh"])
def test_files_that_arrive_damaged_are_not_used(bench: Bench, config_name: str) -> None:
    # This sha256sum of the device reports every file as changed.
    config: DeviceConfig = getattr(bench, config_name)
    programs = bench.phone.data / "bin" if config_name == "over_adb" else bench.folder / "bin"
    programs.mkdir(exist_ok=True)
    wrong_sha256sum = programs / "sha256sum"
    wrong_sha256sum.write_text('#!/bin/sh\nfor file in "$@"; do printf "%064d  %s\\n" 0 "$file"; done\n')
    wrong_sha256sum.chmod(0o755)
    path = f"{'/data/bin' if config_name == 'over_adb' else programs}:/usr/bin:/bin"
    config = replace(config, environment={"PATH": path})
    assert bench.measure(bench.bundle(WRITES), config, bench.here).device == "here"
    assert str(bench.farm.quarantined[config.name]).endswith("3 of 3 files arrived damaged; none was used")
    assert blobs(bench.phone.data) + blobs(bench.board.folder) == []


def test_a_device_without_the_runner_is_quarantined(bench: Bench) -> None:
    phone = replace(bench.over_adb, python="/no/such/python")
    assert bench.measure(bench.bundle(WRITES), phone, bench.here).device == "here"
    why = bench.farm.quarantined["phone"]
    assert str(why) == "cannot start '/no/such/python' on the device: no program '/no/such/python' there"
    assert why.problem is DeviceProblem.RUNNER_MISSING


FAILS = {
    "import os; os.abort()": (-6, "ended with SIGABRT on "),
    "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)": (-11, "ended with SIGSEGV on "),
    "import sys; sys.exit(1)": (1, "ended with exit code 1 on "),
    SLEEPS: (-9, "did not end within 5 s on "),
}


@pytest.mark.parametrize("code", FAILS)
@pytest.mark.parametrize("config_name", ["over_adb", "over_ssh", "here"])
def test_a_program_that_fails_is_at_fault_and_is_not_retried_elsewhere(
    bench: Bench, code: str, config_name: str
) -> None:
    config = replace(getattr(bench, config_name), deadline_s=5)
    exit_code, words = FAILS[code]
    with pytest.raises(RunnerFailed, match=words) as failed:
        bench.measure(bench.bundle(code), config, replace(bench.here, name="sibling"))
    assert failed.value.command.exit_code == exit_code
    assert bench.farm.quarantined == {}
    assert_no_runner_is_left(bench)


ENDED_BY_THE_MACHINE = {
    "os.kill(os.getpid(), 9)": "another process ended it with SIGKILL, as a system short of memory does",
    "os.kill(os.getpid(), 15)": "another process ended it with SIGTERM, as a system short of memory does",
    "raise MemoryError": "this machine is short of memory or files; run again: MemoryError",
    "os.write(2, b'  what():  std::bad_alloc\\n'); os.abort()": (
        "this machine is short of memory or files; run again: what():  std::bad_alloc"
    ),
}


@pytest.mark.parametrize("code", ENDED_BY_THE_MACHINE)
@pytest.mark.parametrize("config_name", ["over_adb", "over_ssh"])
def test_a_program_that_the_device_ends_for_lack_of_memory_runs_on_another_device(
    bench: Bench, code: str, config_name: str
) -> None:
    config: DeviceConfig = getattr(bench, config_name)
    bundle = bench.bundle(f"import os\nif '/here/' not in os.getcwd():\n    {code}\n{WRITES}")
    assert bench.measure(bundle, config, bench.here).device == "here"
    words = f"the shipping program did not run to its end on {config.name}: {ENDED_BY_THE_MACHINE[code]}"
    assert str(bench.farm.quarantined[config.name]) == words


@pytest.mark.parametrize("code", ENDED_BY_THE_MACHINE)
def test_a_program_that_this_machine_ends_for_lack_of_memory_is_no_failed_cell(bench: Bench, code: str) -> None:
    with pytest.raises(MachineFault) as failed:
        bench.measure(bench.bundle(f"import os\n{code}"), bench.here)
    assert str(failed.value) == f"the shipping program did not run to its end on here: {ENDED_BY_THE_MACHINE[code]}"
    assert bench.farm.quarantined == {}


ENDED_ONCE = """
import os
if "--dump_intermediate_outputs" in sys.argv:
    Path("debug_output.bin").write_bytes(b"debug")
    if not Path("../started").exists():
        Path("../started").touch()
        os.kill(os.getpid(), {number})
"""
ALWAYS_ENDED = """
import os
if "--dump_intermediate_outputs" in sys.argv:
    os.kill(os.getpid(), {number})
"""


def with_debug_program(bench: Bench, code: str) -> Bundle:
    """Return a bundle with a shipping and a debug program. Both run this code when their files are written."""
    bundle = bench.bundle(WRITES + code)
    (shipping,) = bundle.launches
    debug = replace(shipping, name="debug", debug=True, captured=(0,), debug_buffer_bytes=64)
    return replace(bundle, launches=(shipping, debug))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.parametrize("config_name", ["over_adb", "here"])
def test_a_debug_program_that_a_signal_ends_is_started_once_more(
    bench: Bench, number: signal.Signals, config_name: str
) -> None:
    bundle = with_debug_program(bench, ENDED_ONCE.format(number=number.value))
    capture = bench.measure(bundle, getattr(bench, config_name))
    assert [(result.launch.name, result.failure) for result in capture.results] == [("shipping", None), ("debug", None)]
    assert bench.farm.quarantined == {}


def test_a_debug_program_that_is_killed_twice_can_need_too_much_memory_so_that_only_its_operators_are_missing(
    bench: Bench,
) -> None:
    capture = bench.measure(with_debug_program(bench, ALWAYS_ENDED.format(number=9)), bench.over_adb)
    _, debug = capture.results
    assert (debug.failure or "").startswith("the debug program ended with SIGKILL on phone")


def test_a_debug_program_that_is_terminated_twice_is_no_property_of_the_model(bench: Bench) -> None:
    with pytest.raises(MachineFault, match=r"^the debug program did not run to its end on here: another process ended"):
        bench.measure(with_debug_program(bench, ALWAYS_ENDED.format(number=15)), bench.here)


def test_a_runner_that_prints_garbage_and_writes_its_files_is_collected(bench: Bench) -> None:
    garbage = (
        "import os, sys\nsys.stdout.buffer.write(os.urandom(100_000))\nsys.stderr.buffer.write(os.urandom(100_000))\n"
    )
    capture = bench.measure(bench.bundle(garbage + WRITES), bench.over_adb)
    assert (capture.device, capture.results[0].latencies_ms) == ("phone", ())


def test_a_device_with_another_soc_than_its_configuration_is_quarantined(bench: Bench) -> None:
    (bench.phone.data / "properties").write_text("ro.soc.model=SM8550\n")
    phone = replace(bench.over_adb, soc="SM8650")
    assert bench.measure(bench.bundle(WRITES), phone, bench.here, soc=SM8650).device == "here"
    assert str(bench.farm.quarantined["phone"]) == "phone reports the SoC SM8550, but device.soc is SM8650"
    assert bench.farm.quarantined["phone"].problem is DeviceProblem.WRONG_SOC


def test_a_probed_device_gets_only_the_cells_of_its_soc(bench: Bench) -> None:
    (bench.phone.data / "properties").write_text("ro.soc.model=SM8550-AC\n")
    phone = replace(bench.over_adb, soc="probe")
    assert bench.measure(bench.bundle(WRITES), phone, bench.here, soc=SM8650).device == "here"
    other = SocConfig(name="SM8550", arch=73, vtcm_mib=8)
    assert bench.measure(bench.bundle(WRITES), phone, soc=other).device == "phone"
    assert bench.farm.quarantined == {}


def test_without_a_sibling_the_cell_fails_with_the_reason_of_the_device(bench: Bench) -> None:
    bench.phone.kill()
    with pytest.raises(DeviceError, match="cannot be used") as alone:
        bench.measure(bench.bundle(WRITES), bench.over_adb)
    assert alone.value.problem is DeviceProblem.LOST
    with pytest.raises(DeviceError, match=r"^no device is left for the cell: phone: .*; other: .*"):
        bench.measure(bench.bundle(WRITES), bench.over_adb, replace(bench.over_adb, name="other"))
