"""Logins over SSH: which host keys are accepted, what is written to known_hosts, and which host gets which password."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from qnnsweep.conf.devices import HostKeys, SshConfig
from qnnsweep.tasks.devices.ssh import SshTransport
from qnnsweep.tasks.devices.transport import RunRequest
from qnnsweep.tasks.errors import DeviceError, DeviceProblem
from tests.devices.loopback import Sshd
from tests.devices.lying_sshd import LyingSshd, says

NOTES = """\
# my notes: the lab's gateway, checked 2024-01-02 by phone
@cert-authority *.lab ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPeQdV0yH3jmnL8bHWJj3kcS0vXb9rVq6Wc2M2pE0m0P CA of the lab
old.example ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPeQdV0yH3jmnL8bHWJj3kcS0vXb9rVq6Wc2M2pE0m0P the comment
sk.example sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAAIPeQdV0yH3jmnL8bHWJj3kcS0vXb9rVq6
broken.example ssh-ed25519 AAAA=
no newline at the end"""


@pytest.fixture
def lying() -> Iterator[LyingSshd]:
    sshd = LyingSshd(says(b"hello"))
    yield sshd
    sshd.close()


def hello(address: str, config: SshConfig) -> bytes:
    host, _, port = address.rpartition(":")
    transport = SshTransport(user="root", host=host, port=int(port), config=config, deadline_s=20)
    try:
        return transport.run(RunRequest(["echo", "hello"], deadline_s=20)).stdout
    finally:
        transport.close()


def keyed(board: Sshd, **options: object) -> SshConfig:
    return SshConfig(**{"key_file": str(board.key), "agent": False, "known_hosts": str(board.known_hosts)} | options)


def test_an_accepted_key_is_appended_and_every_other_line_stays(board: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(NOTES)
    accept = keyed(board, known_hosts=str(known), host_keys=HostKeys.accept_new)
    assert hello(f"127.0.0.1:{board.port}", accept) == b"hello\n"
    key_type, key, _ = (board.folder / "host_key.pub").read_text().split(" ")
    assert known.read_text() == f"{NOTES}\n[127.0.0.1]:{board.port} {key_type} {key}\n"
    # Now the key is known, even if unknown keys are not accepted.
    assert hello(f"127.0.0.1:{board.port}", keyed(board, known_hosts=str(known))) == b"hello\n"
    assert known.read_text() == f"{NOTES}\n[127.0.0.1]:{board.port} {key_type} {key}\n"


def test_known_hosts_that_is_missing_is_created_for_the_user_alone(board: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "new" / "known_hosts"
    accept = keyed(board, known_hosts=str(known), host_keys=HostKeys.accept_new)
    assert hello(f"127.0.0.1:{board.port}", accept) == b"hello\n"
    assert (known.parent.stat().st_mode & 0o777, known.stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize("policy", HostKeys)
def test_a_revoked_key_is_refused(board: Sshd, tmp_path: Path, policy: HostKeys) -> None:
    known = tmp_path / "known_hosts"
    key_type, key, _ = (board.folder / "host_key.pub").read_text().split(" ")
    lines = f"{board.known_hosts.read_text()}@revoked * {key_type} {key}\n"
    known.write_text(lines)
    with pytest.raises(DeviceError, match=r"^revoked host key: ") as refused:
        hello(f"127.0.0.1:{board.port}", keyed(board, known_hosts=str(known), host_keys=policy))
    assert refused.value.problem is DeviceProblem.HOST_KEY
    assert known.read_text() == lines


def test_a_hashed_host_name_is_found(board: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    _, key_type, key, *_ = board.known_hosts.read_text().split(" ")
    known.write_text(f"{paramiko.HostKeys.hash_host(f'[127.0.0.1]:{board.port}')} {key_type} {key}\n")
    assert hello(f"127.0.0.1:{board.port}", keyed(board, known_hosts=str(known))) == b"hello\n"


def test_a_jump_host_never_gets_the_password_of_the_device(
    lying: LyingSshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("BOARD_PASSWORD", "of-the-board")
    monkeypatch.setenv("GATE_PASSWORD", "of-the-gate")
    jump = LyingSshd()
    request.addfinalizer(jump.close)
    known = tmp_path / "known_hosts"
    known.write_text(lying.line + jump.line)
    config = SshConfig(
        known_hosts=str(known), agent=False, password_variable="BOARD_PASSWORD", jump=f"me@127.0.0.1:{jump.port}"
    )
    with pytest.raises(DeviceError):
        hello(f"127.0.0.1:{lying.port}", config)
    assert jump.passwords == []
    config.jump_password_variable = "GATE_PASSWORD"
    with pytest.raises(DeviceError):  # this jump host opens no tunnel
        hello(f"127.0.0.1:{lying.port}", config)
    assert jump.passwords == ["of-the-gate"]
    config.jump = None
    assert hello(f"127.0.0.1:{lying.port}", config) == b"hello"
    assert lying.passwords == ["of-the-board"]


def test_a_device_is_reached_through_a_jump_host(board: Sshd) -> None:
    config = keyed(board, jump=f"root@127.0.0.1:{board.port}")
    assert hello(f"127.0.0.1:{board.port}", config) == b"hello\n"


def test_a_password_variable_that_is_not_set_is_an_error_that_names_it(board: Sshd) -> None:
    with pytest.raises(DeviceError, match=r"NO_SUCH_PASSWORD, which is not set here: export NO_SUCH_PASSWORD$"):
        hello(f"127.0.0.1:{board.port}", keyed(board, password_variable="NO_SUCH_PASSWORD"))
