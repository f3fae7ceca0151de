"""A board or a simulator host over SSH, by paramiko."""

from __future__ import annotations

import contextlib
import os
import posixpath
import select
import shlex
import tarfile
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko

from conf.schema import HostKeys, SshConfig
from tasks.devices.atomic_transfer import pull_atomically, push_atomically
from tasks.devices.remote_command import RemoteCommand
from tasks.devices.transport import CommandResult, past_deadline
from tasks.devices.triage import of_channel
from tasks.errors import DeviceError, DeviceProblem

# paramiko's default order begins with ciphers that it computes at half the speed.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
_REKEY_BYTES = 2**35
"""paramiko asks for new keys after 512 MiB, and that hangs now and then in the middle of a stream. 32 GiB is OpenSSH's
order of magnitude for these ciphers."""
_BROKEN = (paramiko.SSHException, OSError, EOFError)
_GRACE_S = 5.0
_CONNECT_S = 20.0
_WINDOW_BYTES = 2**26
_PACKET_BYTES = 2**17
_CHUNK_BYTES = 2**20
_SENT_BYTES = 2**15 - 1024
"""What sshd takes in one packet: paramiko copies what is left of a larger piece for each."""


@dataclass(kw_only=True, slots=True)
class SshTransport:
    """`Transport` over SSH. One connection, made when it is first needed; broken stays broken."""

    user: str | None
    host: str
    port: int
    config: SshConfig
    deadline_s: float
    """For each transfer."""
    _client: paramiko.SSHClient | None = None
    _jump: paramiko.SSHClient | None = None
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def push(self, source: Path, target: str) -> None:
        def transfer(arriving: str) -> None:
            there, parent = shlex.quote(arriving), shlex.quote(posixpath.dirname(arriving))
            take = f"mkdir {there} && tar -C {there} -xof -" if source.is_dir() else f"cat >{there}"
            take = f"mkdir -p -- {parent} && {take}"
            with self._stream(take, f"push {source} to {target}") as channel:
                _send(source, channel)

        push_atomically(self, source, target, transfer)

    def pull(self, source: str, target: Path) -> None:
        def transfer(fresh: Path) -> None:
            there = shlex.quote(source)
            is_folder = self.run(["test", "-d", source], deadline_s=self.deadline_s).exit_code == 0
            give = f"tar -C {there} -cf - ." if is_folder else f"cat -- {there}"
            with self._stream(give, f"pull {source} to {target}") as channel:
                _receive(channel, fresh, is_folder=is_folder)

        pull_atomically(source, target, transfer)

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline_s: float,
        folder: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> CommandResult:
        command = RemoteCommand.of(argv, deadline_s=deadline_s, folder=folder, environment=environment)
        started = time.monotonic()
        try:
            with self._connected().open_session(timeout=_CONNECT_S) as channel:
                channel.exec_command(command.start)
                out, err = _listen(channel, command, started + deadline_s)
        except TimeoutError as error:
            said = b"".join(part for part in error.args if isinstance(part, bytes))
            raise past_deadline(argv[0], deadline_s, said) from None
        except _BROKEN as error:
            raise self._lost(f" while it ran {argv[0]!r}: {_words(error)}") from error
        result = command.result(out, err, time.monotonic() - started)
        if result is None:
            said = command.said_before(err) or "the connection ended"
            raise self._lost(f" while it ran {argv[0]!r}: {said}")
        return result

    def close(self) -> None:
        with self._guard:
            for client in (self._client, self._jump):
                if client is not None:
                    client.close()

    @property
    def _name(self) -> str:
        return f"{self.host}:{self.port}"

    @contextlib.contextmanager
    def _stream(self, command: str, purpose: str) -> Generator[paramiko.Channel]:
        """The input and output of a command on the device, which must end well, within the deadline."""
        late = threading.Event()
        try:
            with self._connected().open_session(_WINDOW_BYTES, _PACKET_BYTES, _CONNECT_S) as channel:

                def give_up() -> None:
                    late.set()
                    channel.close()

                timer = threading.Timer(self.deadline_s, give_up)
                timer.start()
                try:
                    channel.exec_command(command)
                    try:
                        yield channel
                        channel.shutdown_write()
                    except OSError as error:
                        # The command itself may have ended early: then it says why, below.
                        if not channel.exit_status_ready() or late.is_set():
                            raise error
                    status = channel.recv_exit_status()
                    said = (
                        b"".join(iter(lambda: channel.recv_stderr(_CHUNK_BYTES), b"")).decode(errors="replace").strip()
                    )
                finally:
                    timer.cancel()
        except (*_BROKEN, tarfile.TarError) as error:
            if late.is_set():
                raise past_deadline(purpose.partition(" ")[0], self.deadline_s) from None
            broken = DeviceProblem.LOST if isinstance(error, EOFError | paramiko.SSHException) else None
            problem = broken or of_channel(_words(error))
            raise DeviceError(f"cannot {purpose} ({self._name}): {_words(error)}", problem=problem) from error
        if late.is_set():
            raise past_deadline(purpose.partition(" ")[0], self.deadline_s)
        if status != 0:
            why = said or ("the connection ended" if status < 0 else f"exit code {status}")
            problem = DeviceProblem.LOST if status < 0 else of_channel(said)
            raise DeviceError(f"cannot {purpose} ({self._name}): {why}", problem=problem)

    def _lost(self, why: str) -> DeviceError:
        return DeviceError(f"lost the device {self._name}{why}", problem=DeviceProblem.LOST)

    def _connected(self) -> paramiko.Transport:
        with self._guard:
            if self._client is None:
                self._client = self._connect()
            transport = self._client.get_transport()
            if transport is None or not transport.is_active():
                raise self._lost(": the connection is gone")
            return transport

    def _connect(self) -> paramiko.SSHClient:
        tunnel = None
        if self.config.jump is not None:
            user, host, port = address_of(self.config.jump)
            self._jump = self._log_in(user, host, port, None)
            transport = self._jump.get_transport()
            assert transport is not None
            try:
                tunnel = transport.open_channel(
                    "direct-tcpip", (self.host, self.port), ("127.0.0.1", 0), timeout=_CONNECT_S
                )
            except _BROKEN as error:
                raise DeviceError(
                    f"{host}:{port} does not lead to {self._name}: {_words(error)}", problem=DeviceProblem.LOST
                ) from error
        client = self._log_in(self.user, self.host, self.port, tunnel)
        transport = client.get_transport()
        assert transport is not None
        transport.set_keepalive(self.config.keep_alive_s)
        return client

    def _log_in(self, user: str | None, host: str, port: int, tunnel: paramiko.Channel | None) -> paramiko.SSHClient:
        config, client = self.config, paramiko.SSHClient()
        known = Path(config.known_hosts or "~/.ssh/known_hosts").expanduser()
        try:
            if config.host_keys is HostKeys.accept_new:
                known.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                known.touch(mode=0o600)
            if known.exists():
                client.load_host_keys(str(known))
            accept = config.host_keys is HostKeys.accept_new
            client.set_missing_host_key_policy(paramiko.AutoAddPolicy() if accept else paramiko.RejectPolicy())
            client.connect(
                host,
                port=port,
                username=user,
                password=self._password(),
                key_filename=str(Path(config.key_file).expanduser()) if config.key_file else None,
                allow_agent=config.agent,
                look_for_keys=config.key_file is None and config.password_variable is None,
                timeout=_CONNECT_S,
                banner_timeout=_CONNECT_S,
                auth_timeout=_CONNECT_S,
                channel_timeout=_CONNECT_S,
                sock=tunnel,
                transport_factory=_transport,
            )
        except paramiko.BadHostKeyException as error:
            client.close()
            raise DeviceError(
                f"wrong host key: {host}:{port} shows another than {known} has for it; "
                "if the device was set up again, remove its line from that file",
                problem=DeviceProblem.HOST_KEY,
            ) from error
        except paramiko.AuthenticationException as error:
            client.close()
            raise DeviceError(
                f"{host}:{port} refuses the login of {user or 'this user'}: {_words(error)}; "
                "check device.ssh: key_file, agent, password_variable",
                problem=DeviceProblem.LOGIN,
            ) from error
        except _BROKEN as error:
            client.close()
            if "not found in known_hosts" in str(error):
                raise DeviceError(
                    f"unknown host key: {host}:{port} is not in {known}; connect once with ssh and look at its key, "
                    "or set device.ssh.host_keys=accept_new",
                    problem=DeviceProblem.HOST_KEY,
                ) from error
            raise DeviceError(
                f"{host}:{port} cannot be reached: {_words(error)}", problem=DeviceProblem.LOST
            ) from error
        return client

    def _password(self) -> str | None:
        if (variable := self.config.password_variable) is None:
            return None
        if variable not in os.environ:
            raise DeviceError(f"device.ssh.password_variable={variable}: no such environment variable is set here")
        return os.environ[variable]


def address_of(address: str) -> tuple[str | None, str, int]:
    """User, host and port of `[user@]host[:port]`; an IPv6 host stands in brackets."""
    user, _, rest = address.rpartition("@")
    if rest.startswith("["):
        host, _, port = rest[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = rest.partition(":")
    return user or None, host, int(port or 22)


def _transport(sock: Any, **options: Any) -> paramiko.Transport:
    transport = paramiko.Transport(sock, **options)
    security = transport.get_security_options()
    security.ciphers = [name for name in _CIPHERS if name in security.ciphers]
    transport.packetizer.REKEY_BYTES = _REKEY_BYTES
    return transport


def _listen(channel: paramiko.Channel, command: RemoteCommand, latest: float) -> tuple[bytes, bytes]:
    """Both streams up to their end, or to that of the channel. Raises TimeoutError at the deadline."""
    out, err = bytearray(), bytearray()
    channel.settimeout(max(0.1, latest - time.monotonic()))
    channel.sendall(command.script)
    while True:
        while channel.recv_ready():
            out += channel.recv(2**20)
        while channel.recv_stderr_ready():
            err += channel.recv_stderr(2**20)
        if command.ended(out, err):
            break
        # In this order: what came before the end is read before the end counts.
        if (channel.closed or channel.eof_received) and not channel.recv_ready() and not channel.recv_stderr_ready():
            break
        if (left := latest - time.monotonic()) <= 0:
            _let_die(channel)
            raise TimeoutError(bytes(out), bytes(err))
        select.select([channel], [], [], min(left, 1.0))
    return bytes(out), bytes(err)


def _let_die(channel: paramiko.Channel) -> None:
    """The end of its input has the device kill the command: wait until it has, but not for ever."""
    channel.shutdown_write()
    latest = time.monotonic() + _GRACE_S
    while not channel.exit_status_ready() and time.monotonic() < latest:
        while channel.recv_ready():  # a full window would keep the device from ending
            channel.recv(2**20)
        while channel.recv_stderr_ready():
            channel.recv_stderr(2**20)
        time.sleep(0.05)


class _Ends:
    """A channel's two ends as tarfile wants them. paramiko's own files, closed by the collector, complain aloud."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self.read = channel.recv
        self._send = channel.sendall

    def write(self, data: bytes) -> int:
        self._send(data)
        return len(data)


def _send(source: Path, channel: paramiko.Channel) -> None:
    ends: Any = _Ends(channel)
    if source.is_dir():
        with tarfile.open(fileobj=ends, mode="w|", bufsize=_SENT_BYTES) as archive:
            archive.add(source, arcname=".")
        return
    with source.open("rb") as file:
        while data := file.read(_SENT_BYTES):
            channel.sendall(data)


def _receive(channel: paramiko.Channel, target: Path, *, is_folder: bool) -> None:
    ends: Any = _Ends(channel)
    if is_folder:
        with tarfile.open(fileobj=ends, mode="r|", bufsize=_CHUNK_BYTES) as archive:
            archive.extractall(target, filter="data")  # nothing outside the folder, whatever the device says
        return
    with target.open("wb") as file:
        while data := channel.recv(_CHUNK_BYTES):
            file.write(data)


def _words(error: BaseException) -> str:
    return str(error).strip() or ("the connection ended" if isinstance(error, EOFError) else type(error).__name__)
