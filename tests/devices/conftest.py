"""Fixtures: every transport, for the contract that all must fulfil. A new transport is an entry in `TRANSPORTS`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qnnsweep.conf.devices import SshConfig
from qnnsweep.tasks.devices.adb import AdbTransport
from qnnsweep.tasks.devices.local import LocalTransport
from qnnsweep.tasks.devices.ssh import SshTransport
from qnnsweep.tasks.devices.transport import CommandResult, RunRequest, Transport
from tests.devices.bench import Bench, started_bench
from tests.devices.loopback import Adbd, AdbServer, Sshd, running

TRANSFER_S = 120


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportCase:
    """A transport to a device, and a work folder under its names on the device and on this machine."""

    transport: Transport
    folder: str
    """The folder's path on the device."""
    here: Path
    """The same folder's path on this machine, where all devices of the tests run."""

    def run(self, argv: list[str], *, deadline_s: float = 60, **options: Any) -> CommandResult:
        return self.transport.run(RunRequest(argv, deadline_s=deadline_s, **options))


def pull_file(transport: Transport, source: str, size: int, target: Path) -> bytes:
    """Pull one file to the new folder `target`, and return the file's content."""
    folder, _, name = source.rpartition("/")
    transport.pull(folder, {name: size}, target)
    assert [path.name for path in target.iterdir()] == [name]
    return (target / name).read_bytes()


@pytest.fixture(scope="session")
def adb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdbServer]:
    server = AdbServer(folder=tmp_path_factory.mktemp("adb-server"))
    with running(server):
        yield server


@pytest.fixture(scope="session")
def phones(tmp_path_factory: pytest.TempPathFactory, adb_server: AdbServer) -> Iterator[tuple[Adbd, Adbd]]:
    """Start two real adbd, each in a sandbox."""
    first, second = (Adbd(folder=tmp_path_factory.mktemp("adbd"), server=adb_server) for _ in range(2))
    with running(first, second):
        yield first, second


@pytest.fixture(scope="session")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """Start a real sshd."""
    sshd = Sshd(folder=tmp_path_factory.mktemp("sshd"))
    with running(sshd):
        yield sshd


def over_adb(phone: Adbd, deadline_s: float = TRANSFER_S) -> AdbTransport:
    return AdbTransport(serial=phone.serial, server=("127.0.0.1", phone.server.port), deadline_s=deadline_s)


def over_ssh(board: Sshd, deadline_s: float = TRANSFER_S) -> SshTransport:
    config = SshConfig(known_hosts=str(board.known_hosts), key_file=str(board.key), agent=False)
    return SshTransport(user="root", host="127.0.0.1", port=board.port, config=config, deadline_s=deadline_s)


def local(request: pytest.FixtureRequest, folder: Path) -> TransportCase:
    return TransportCase(transport=LocalTransport(), folder=str(folder), here=folder)


def adb(request: pytest.FixtureRequest, folder: Path) -> TransportCase:
    """Return a case with a folder in the device's own /data."""
    phone, _ = request.getfixturevalue("phones")
    inside = f"test {folder.parent.name}"
    (phone.data / inside).mkdir()
    return TransportCase(transport=over_adb(phone), folder=f"/data/{inside}", here=phone.data / inside)


def ssh(request: pytest.FixtureRequest, folder: Path) -> TransportCase:
    return TransportCase(transport=over_ssh(request.getfixturevalue("board")), folder=str(folder), here=folder)


TRANSPORTS: dict[str, Callable[[pytest.FixtureRequest, Path], TransportCase]] = {"local": local, "adb": adb, "ssh": ssh}


@pytest.fixture(params=TRANSPORTS)
def transport_case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TransportCase]:
    folder = tmp_path / "on the device"
    folder.mkdir()
    case = TRANSPORTS[request.param](request, folder)
    yield case
    case.transport.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with started_bench(tmp_path) as bench:
        yield bench
        # A janitor gives its device back with files of this test, and says if it cannot: not in the test after it.
        for thread in threading.enumerate():
            if thread.name.startswith("janitor of "):
                thread.join(60)
                assert not thread.is_alive(), f"{thread.name} is still at work"
