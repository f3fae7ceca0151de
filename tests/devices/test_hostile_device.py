"""A device that answers with anything: it cannot write files of this machine, fill its memory, or cost a cell."""

from __future__ import annotations

import contextlib
import io
import posixpath
import resource
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from qnnsweep.conf.devices import DeviceConfig, SshConfig, TransportKind
from qnnsweep.conf.schema import SocConfig
from qnnsweep.tasks.devices.collect import collect
from qnnsweep.tasks.devices.device import open_device
from qnnsweep.tasks.devices.disk_space import make_room
from qnnsweep.tasks.devices.farm import QUARANTINE, Farm, quarantined_in
from qnnsweep.tasks.devices.local import LocalTransport
from qnnsweep.tasks.devices.runner_cli import latencies_ms, step_input_file, step_output_file
from qnnsweep.tasks.devices.transport import RunRequest
from qnnsweep.tasks.errors import DeadlinePassed, DeviceError, EnvironmentUnusable, EvidenceError
from qnnsweep.tasks.records import Command, Execution, Launch, LaunchedMethod, LaunchResult, Place, TensorSpec
from qnnsweep.tasks.storage.atomic import temporary_name
from qnnsweep.tasks.storage.store import Store
from tests.devices.loopback import require_root
from tests.devices.lying_sshd import LyingSshd, says

SM8650 = SocConfig(name="SM8650", arch=75, vtcm_mib=8)


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> Iterator[LyingSshd]:
    monkeypatch.setenv("LYING_PASSWORD", "any")
    sshd = LyingSshd()
    yield sshd
    sshd.close()


def config_of(sshd: LyingSshd, folder: Path) -> DeviceConfig:
    known = folder / "known_hosts"
    known.write_text(sshd.line)
    return DeviceConfig(
        name="lying",
        transport=TransportKind.ssh,
        address=f"root@127.0.0.1:{sshd.port}",
        ssh=SshConfig(known_hosts=str(known), agent=False, password_variable="LYING_PASSWORD"),
        work_folder=str(folder / "work"),
        lock_folder=str(folder),
        python="python3",
        deadline_s=10,
    )


def run_for_real(channel: paramiko.Channel, command: bytes) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(["sh", "-c", command], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0) as process:
        stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None

        def feed() -> None:
            with contextlib.suppress(OSError, ValueError):  # the command has ended
                while data := channel.recv(65536):
                    stdin.write(data)

        threading.Thread(target=feed, daemon=True).start()
        channel.sendall(stdout.read())
        channel.sendall_stderr(stderr.read())
        channel.send_exit_status(process.wait())


def escaping_archive(victim: Path) -> bytes:
    """Return an archive that old versions of `tarfile` extract outside their target folder (CVE-2025-4517)."""
    component, steps, path, buffer = "d" * 247, "abcdefghijklmnop", "", io.BytesIO()

    def add(archive: tarfile.TarFile, name: str, kind: bytes, link: str = "", content: bytes = b"") -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.size = kind, link, len(content)
        archive.addfile(member, io.BytesIO(content))

    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for step in steps:
            add(archive, posixpath.join(path, component), tarfile.DIRTYPE)
            add(archive, posixpath.join(path, step), tarfile.SYMTYPE, component)
            path = posixpath.join(path, component)
        long_link = posixpath.join("/".join(steps), "l" * 254)
        add(archive, long_link, tarfile.SYMTYPE, "../" * len(steps))
        add(archive, "escape", tarfile.SYMTYPE, f"{long_link}/../{'../' * 12}{str(victim.parent).lstrip('/')}")
        add(archive, "newfile", tarfile.LNKTYPE, f"escape/{victim.name}")
        add(archive, "newfile", tarfile.REGTYPE, content=b"attacker's key\n")
        add(archive, f"escape/{victim.name}.created", tarfile.REGTYPE, content=b"attacker's key\n")
    return buffer.getvalue()


def executed(folder: Path, store: Store, *, debug: bool = False) -> Execution:
    """Write the files of a launch to a folder of the device, and return the execution of the shipping program.

    `debug`: whether the debug program ran too. Its files are in the same folder.
    """
    (folder / "outputs").mkdir(parents=True)
    (folder / "outputs" / "output_0_0.raw").write_bytes(bytes(8))
    (folder / "etdump.etdp").write_bytes(b"etdump")
    blob, output = store.put_bytes(b""), TensorSpec(name="logits", shape=(2,), dtype="float32")
    launch = Launch(
        name="shipping", program=blob, input_list=blob, samples=1, debug=False, debug_buffer_bytes=100, events=5,
        iterations=1, warm_up=0, methods=(LaunchedMethod(name=None, index=0, outputs=(output,)),),
    )  # fmt: skip
    command = Command(argv=("runner",), exit_code=0, seconds=1.0)
    result = LaunchResult(launch=launch, folder=str(folder), command=command, latencies_ms=(), log=blob)
    logged = replace(result, launch=replace(launch, name="debug", debug=True))
    return Execution(device="lying", results=(result, logged) if debug else (result,))


def test_a_device_writes_no_file_outside_the_folder_of_a_pull(lying: LyingSshd, tmp_path: Path) -> None:
    victim = tmp_path / "home" / "authorized_keys"
    victim.parent.mkdir()
    victim.write_text("mine\n")

    def answer(channel: paramiko.Channel, command: bytes) -> None:
        if command.startswith((b"tar ", b"cd ")):
            channel.sendall(escaping_archive(victim))
            channel.send_exit_status(0)
        else:
            run_for_real(channel, command)

    lying.answer = answer
    device = open_device(config_of(lying, tmp_path), host_environment={}, folder=tmp_path, native={})
    with tempfile.TemporaryDirectory() as short:  # the archive escapes only from a folder with a short path
        store = Store(Path(short))
        with pytest.raises((DeviceError, EvidenceError)):
            collect(executed(tmp_path / "launch", store), device=device, store=store)
    device.transport.close()
    assert {path.name: path.read_text() for path in victim.parent.iterdir()} == {"authorized_keys": "mine\n"}


@pytest.mark.timeout(60)
def test_a_device_that_freezes_before_it_starts_a_command_costs_the_deadline(lying: LyingSshd, tmp_path: Path) -> None:
    device = open_device(config_of(lying, tmp_path), host_environment={}, folder=tmp_path, native={})
    lying.frozen.set()
    try:
        with pytest.raises(DeadlinePassed, match="'true' ran past its deadline of 1 s"):
            device.transport.run(RunRequest(["true"], deadline_s=1))
    finally:
        lying.frozen.clear()
        device.transport.close()


def test_an_honest_device_is_collected(lying: LyingSshd, tmp_path: Path) -> None:
    lying.answer = run_for_real
    store = Store(tmp_path / "store")
    device = open_device(config_of(lying, tmp_path), host_environment={}, folder=tmp_path, native={})
    capture = collect(executed(tmp_path / "launch", store), device=device, store=store)
    device.transport.close()
    assert store.read(capture.methods[0].etdump) == b"etdump"


TOO_LARGE = {
    "outputs/output_0_0.raw": r"^output 0 \(logits\) has 3221225472 bytes; float32\[2\] has 8$",
    "etdump.etdp": r"^here: etdump.etdp has 3221225472 bytes, but at most 2098432 were expected$",
    "debug_output.bin": r"^here: debug_output.bin has 3221225472 bytes, but at most 100 were expected$",
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_file_that_is_larger_than_expected_is_not_read(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / "store")
    execution = executed(tmp_path / "launch", store, debug=True)
    (tmp_path / "launch" / "debug_output.bin").write_bytes(b"")
    with (tmp_path / "launch" / name).open("wb") as sparse:
        sparse.truncate(3 << 30)
    device = open_device(DeviceConfig(name="here"), host_environment={}, folder=tmp_path, native={})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(EvidenceError, match=TOO_LARGE[name]):
        collect(execution, device=device, store=store)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def with_states(folder: Path, store: Store) -> Execution:
    """Return the execution of a model with a state, one step of which was logged, with its files in `folder`."""
    execution = executed(folder, store, debug=True)
    specs = tuple(TensorSpec(name=name, shape=(10,), dtype="float32") for name in ("token", "cache"))
    method = replace(execution.results[0].launch.methods[0], inputs=specs, positions=(Place(sequence=0, step=0),))
    place = (method.positions or ())[0]
    for name in (step_output_file(place, 0), *(step_input_file(place, index) for index in range(2))):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(bytes(8 if name == step_output_file(place, 0) else 40))
    (folder / "debug_output.bin").write_bytes(b"")
    shipping, logged = execution.results
    driven = replace(shipping, launch=replace(shipping.launch, driven=True, methods=(method,)))
    return replace(
        execution, results=(driven, replace(logged, launch=replace(logged.launch, methods=(method,), captured=(0,))))
    )


def test_the_inputs_of_a_step_have_the_size_that_is_expected(tmp_path: Path) -> None:
    store, folder = Store(tmp_path / "store"), tmp_path / "launch"
    execution = with_states(folder, store)
    device = open_device(DeviceConfig(name="here"), host_environment={}, folder=tmp_path, native={})
    assert collect(execution, device=device, store=store).methods[0].debug[0].inputs is not None
    name = step_input_file(Place(sequence=0, step=0), 1)
    with (folder / name).open("wb") as sparse:
        sparse.truncate(3 << 30)
    pulled: list[int] = []

    class Counting(LocalTransport):
        def pull(self, folder: str, sizes: Mapping[str, int], target: Path) -> None:
            pulled.append(sum(sizes.values()))
            super().pull(folder, sizes, target)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(EvidenceError, match=r"\(cache\) has 3221225472 bytes; float32\[10\] has 40$"):
        collect(execution, device=replace(device, transport=Counting()), store=store)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2048  # KiB
    assert sum(pulled) < 1024


REPLIES = [
    b"free=nan\n", b"free=inf\nbattery_capacity=nan\n", b"battery_capacity=1e999\n", b"\xff\n\n", b"",
    "free=²\n".encode(),
    b"soc=" + b"S" * 1_000_000, b"=\n=\0=", b"9" * 5000, b"SM8650" * 100,
]  # fmt: skip


@pytest.mark.parametrize("reply", REPLIES)
def test_a_device_that_answers_anything_costs_no_cell(lying: LyingSshd, tmp_path: Path, reply: bytes) -> None:
    lying.answer = says(reply)
    farm = Farm(host_environment={}, folder=tmp_path / "farm")
    here = DeviceConfig(name="here", work_folder=str(tmp_path / "here"))
    device = replace(config_of(lying, tmp_path), soc="probe")
    with farm.lease([device, here], SM8650) as device_in_use:
        assert device_in_use.name == "here"
    with pytest.raises(DeviceError), farm.lease([replace(device, soc=None)]) as device_in_use:
        make_room(device_in_use, [], 1)


@pytest.mark.parametrize("address", ["board..lab", "b" * 300, "ü" * 64 + ".lab"])
def test_a_name_that_cannot_be_resolved_costs_no_cell(lying: LyingSshd, tmp_path: Path, address: str) -> None:
    farm = Farm(host_environment={}, folder=tmp_path / "farm")
    here = DeviceConfig(name="here", work_folder=str(tmp_path / "here"))
    with farm.lease([replace(config_of(lying, tmp_path), address=address), here]) as device_in_use:
        assert device_in_use.name == "here"
    assert set(farm.quarantined) == {"lying"}


DIGESTS = [b"", b"\n\n", b"\xff\n\xff\n", b"0" * 64, b"0" * 64 + b"  another\n"]


@pytest.mark.parametrize("reply", DIGESTS)
def test_wrong_digests_are_an_error_of_the_device(lying: LyingSshd, tmp_path: Path, reply: bytes) -> None:
    lying.answer = says(reply)
    store = Store(tmp_path / "store")
    device = open_device(config_of(lying, tmp_path), host_environment={}, folder=tmp_path, native={})
    with pytest.raises(DeviceError, match=r"^lying: (wc|sha256sum) printed "):
        collect(executed(tmp_path / "launch", store), device=device, store=store)
    device.transport.close()


def test_latencies_are_read_from_any_output() -> None:
    line = "I executorch:main.cpp:1] 10 inference took 12.500000 ms, avg 1.250000 ms\n"
    broken = ["] 1 inference took 1.2.3 ms, avg 4..5 ms", "] 1 inference took 1 ms, avg . ms", "] " + "1" * 1_000_000]
    assert latencies_ms("\n".join([line, *broken, line])) == (1.25, 1.25)


def test_quarantine_files_that_cannot_be_read_are_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    farm = Farm(host_environment={}, folder=tmp_path)
    farm.quarantine("phone", DeviceError("lost"))
    for content in (b"", b"{", b"\xff", b"[]", b'{"device": "x"}'):
        (tmp_path / QUARANTINE / temporary_name()).write_bytes(content)
    assert quarantined_in(tmp_path) == {"phone": "lost"}
    assert caplog.text.count("so it quarantines no device") == 5


def test_a_quarantine_that_cannot_be_recorded_lasts_for_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / QUARANTINE).write_text("a file is where the folder belongs")
    farm = Farm(host_environment={}, folder=tmp_path)
    farm.quarantine("phone", DeviceError("lost"))
    assert set(farm.quarantined) == {"phone"}
    assert "the quarantine of phone cannot be recorded" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == [QUARANTINE]


def test_a_full_disk_of_this_machine_is_no_error_of_a_device(tmp_path: Path) -> None:
    require_root("to mount a small disk")
    mounted = tmp_path / "full"
    mounted.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", mounted], check=True)
    try:
        (tmp_path / "large").write_bytes(bytes(4_000_000))
        with pytest.raises(EnvironmentUnusable, match="No space left on device"):
            LocalTransport().pull(str(tmp_path), {"large": 4_000_000}, mounted / "launch")
        with pytest.raises(EnvironmentUnusable, match="No space left on device"):
            LocalTransport().push(tmp_path / "large", str(mounted / "large"))
        assert list(mounted.iterdir()) == []
    finally:
        subprocess.run(["umount", mounted], check=True)
