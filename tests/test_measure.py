"""The stages bundle and measure, and the three steps of measure, on the local device, with right and wrong files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from qnnsweep.conf.devices import DeviceConfig
from qnnsweep.conf.schema import MeasureConfig, Request
from qnnsweep.flows.cells.resources import Resources
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.devices.collect import collect
from qnnsweep.tasks.devices.deploy import deploy
from qnnsweep.tasks.devices.device import Device
from qnnsweep.tasks.devices.execute import execute
from qnnsweep.tasks.errors import EvidenceError, RunnerFailed
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.records import Bundle, LoweredProgram

pytestmark = pytest.mark.toolchain


@pytest.fixture(scope="module")
def packed(request_8a8w: Request, resources: Resources, lowered: LoweredProgram) -> Bundle:
    return bundle(lowered, request_8a8w.measure, store=resources.store)


@pytest.fixture
def device(tmp_path: Path, resources: Resources, request_8a8w: Request) -> Iterator[Device]:
    """Lease a local device without any files."""
    with resources.farm.lease([fresh(tmp_path)]) as device:
        yield device


def fresh(folder: Path) -> DeviceConfig:
    return DeviceConfig(name=folder.name, work_folder=str(folder / "device"))


def files(folder: Path) -> set[str]:
    """Return the relative paths of all files but those of the lock of the device."""
    found = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {str(path) for path in found if path.parts[0] != "qnnsweep-lock"}


def with_runner(packed: Bundle, resources: Resources, code: str) -> Bundle:
    """Return the same bundle with another program instead of the runner."""
    runner = resources.store.put_bytes(code.encode())
    return replace(packed, runner=runner, blobs=(runner, *packed.blobs))


def pretend(packed: Bundle, change: str) -> str:
    """Return the code of a runner that writes files of the right names and sizes and then runs `change`."""
    samples = {launch.input_list.sha256: launch.samples for launch in packed.launches}
    ((output,),) = {launch.methods[0].outputs for launch in packed.launches}
    assert (output.shape, output.dtype) == ((1, 10), "float32")
    return f"""
import sys
from pathlib import Path
flags = dict(flag.lstrip("-").partition("=")[::2] for flag in sys.argv[1:])
for sample in range({samples}[Path(flags["input_list_path"]).name]):
    Path(f"outputs/output_{{sample}}_0.raw").write_bytes(bytes(40))
Path("etdump.etdp").touch()
Path("debug_output.bin").touch()
{change}
"""


def test_only_files_that_the_device_does_not_have_are_sent(
    packed: Bundle, device: Device, resources: Resources
) -> None:
    first = deploy(packed, device=device, store=resources.store)
    assert (first.blobs_sent, first.bytes_sent) == (len(packed.blobs), sum(blob.size for blob in packed.blobs))
    assert (first.device, first.work_folder, first.bundle) == (device.name, device.work_folder, packed)
    second = deploy(packed, device=device, store=resources.store)
    assert second == replace(first, blobs_sent=0, bytes_sent=0)
    assert files(Path(device.work_folder)) - {".qnnsweep"} == {f"blobs/{blob.sha256}" for blob in packed.blobs}


def truncated(blob: Path) -> None:
    blob.chmod(0o600)
    blob.write_bytes(blob.read_bytes()[:-1])


def corrupted(blob: Path) -> None:
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.chmod(0o600)
    blob.write_bytes(data)


@pytest.mark.parametrize("harm", [truncated, corrupted, Path.unlink], ids=["truncated", "corrupted", "gone"])
def test_a_blob_that_was_damaged_on_the_device_is_sent_again(
    harm: Callable[[Path], None], packed: Bundle, device: Device, resources: Resources
) -> None:
    deploy(packed, device=device, store=resources.store)
    program = packed.launches[0].program
    there = Path(device.work_folder, "blobs", program.sha256)
    harm(there)
    again = deploy(packed, device=device, store=resources.store)
    assert (again.blobs_sent, again.bytes_sent) == (1, program.size)
    assert there.read_bytes() == resources.store.read(program)


def test_no_file_of_a_launch_remains_on_the_device(packed: Bundle, resources: Resources, tmp_path: Path) -> None:
    with resources.farm.lease([fresh(tmp_path)]) as device:
        deployment = deploy(packed, device=device, store=resources.store)
        execution = execute(deployment, device=device, store=resources.store)
        written = sorted(files(Path(device.lease_folder)))
        collect(execution, device=device, store=resources.store)
    outputs = [f"outputs/output_{sample}_0.raw" for sample in range(8)]
    shipping = [f"shipping/{name}" for name in ("etdump.etdp", "inference_speed.txt", *outputs)]
    debug = [f"debug/{name}" for name in ("debug_output.bin", "etdump.etdp", "inference_speed.txt", *outputs[:2])]
    assert written == sorted([*debug, *shipping])
    assert files(tmp_path / "device") - {".qnnsweep"} == {f"blobs/{blob.sha256}" for blob in packed.blobs}
    assert list((tmp_path / "device" / "leases").iterdir()) == []


WRONG = {
    'Path("outputs/output_1_0.raw").unlink()': (
        "{device}: the runner succeeded, but a file that it writes is missing: "
        "wc: outputs/output_1_0.raw: No such file or directory"
    ),
    'Path("etdump.etdp").unlink()': (
        "{device}: the runner succeeded, but a file that it writes is missing: "
        "wc: etdump.etdp: No such file or directory"
    ),
    'Path("outputs/output_1_0.raw").write_bytes(bytes(39))': "output 0 ({output}) has 39 bytes; float32[1, 10] has 40",
    'Path("outputs/output_1_0.raw").write_bytes(b"")': "output 0 ({output}) has 0 bytes; float32[1, 10] has 40",
}


@pytest.mark.parametrize(("change", "line"), WRONG.items(), ids=lambda _: "")
def test_wrong_files_of_a_runner_that_succeeds_are_refused(
    change: str, line: str, packed: Bundle, device: Device, resources: Resources
) -> None:
    pretended = with_runner(packed, resources, pretend(packed, change))
    deployment = deploy(pretended, device=device, store=resources.store)
    execution = execute(deployment, device=device, store=resources.store)
    with pytest.raises(EvidenceError) as wrong:
        collect(execution, device=device, store=resources.store)
    assert str(wrong.value) == line.format(device=device.name, output=packed.launches[0].methods[0].outputs[0].name)


def test_right_files_of_a_runner_are_collected(packed: Bundle, device: Device, resources: Resources) -> None:
    deployment = deploy(with_runner(packed, resources, pretend(packed, "")), device=device, store=resources.store)
    execution = execute(deployment, device=device, store=resources.store)
    assert [result.latencies_ms for result in execution.results] == [(), ()]
    capture = collect(execution, device=device, store=resources.store)
    assert (capture.device, capture.results) == (execution.device, execution.results)


def test_the_output_of_a_runner_that_fails_is_quoted_and_stored(
    packed: Bundle, device: Device, resources: Resources, tmp_path: Path
) -> None:
    code = "import sys; print('loaded'); sys.exit('E executorch:main.cpp:1] no\\n' * 20)"
    deployment = deploy(with_runner(packed, resources, code), device=device, store=resources.store)
    with pytest.raises(RunnerFailed) as failed:
        execute(deployment, device=device, store=resources.store)
    words = "\n".join(["E executorch:main.cpp:1] no"] * 8)
    assert str(failed.value) == f"the shipping program ended with exit code 1 on {device.name}\n{words}"
    assert failed.value.command.exit_code == 1
    log = resources.store.find(failed.value.log)
    assert log is not None
    assert resources.store.read(log) == b"loaded\n\n" + b"E executorch:main.cpp:1] no\n" * 20 + b"\n"


def test_a_debug_buffer_that_is_too_small_aborts_the_runner_with_that_message(
    lowered: LoweredProgram, resources: Resources, tmp_path: Path
) -> None:
    starved = bundle(lowered, MeasureConfig(operator_samples=2, debug_buffer_bytes=1), store=resources.store)
    with pytest.raises(RunnerFailed) as failed:
        measure(starved, (fresh(tmp_path),), None, store=resources.store, farm=resources.farm)
    first, *words = str(failed.value).splitlines()
    assert first == f"the debug program ended with SIGABRT on {tmp_path.name}"
    assert "Ran out of space to store intermediate outputs" in "\n".join(words)
    assert failed.value.command.exit_code == -6
    assert "--debug_buffer_size=1" in failed.value.command.argv
    log = resources.store.find(failed.value.log)
    assert log is not None
    assert b"is loaded." in resources.store.read(log)
    assert list((tmp_path / "device" / "leases").iterdir()) == []


def test_a_runner_that_hangs_on_a_responsive_device_is_killed_and_is_at_fault(
    packed: Bundle, resources: Resources, tmp_path: Path
) -> None:
    hanging = with_runner(packed, resources, "import time; print('so far', flush=True); time.sleep(600)")
    config = replace(fresh(tmp_path), deadline_s=4)
    with pytest.raises(RunnerFailed, match=r"^the shipping program did not end within 4 s on ") as failed:
        measure(hanging, (config,), None, store=resources.store, farm=resources.farm)
    assert failed.value.command.exit_code == -9
    log = resources.store.find(failed.value.log)
    assert log is not None
    assert resources.store.read(log) == b"so far\n"
