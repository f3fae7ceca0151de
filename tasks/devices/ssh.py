"""A channel to a board or a simulator host over SSH, with paramiko."""

import contextlib
import os
import posixpath
import select
import shlex
import tarfile
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko

from conf.schema import DeviceConfig, HostKeys, SshConfig
from tasks.devices.atomic_transfer import pull_atomically, push_atomically
from tasks.devices.remote_command import RemoteCommand
from tasks.devices.transport import CommandResult, RunRequest, past_deadline
from tasks.devices.triage import of_channel
from tasks.errors import DeviceError, DeviceProblem

# paramiko prefers ciphers that it computes at half the speed.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
_REKEY_BYTES = 2**35
"""paramiko exchanges keys after 512 MiB, which sometimes hangs in the middle of a stream. OpenSSH's limit for these
ciphers is of the order of 32 GiB."""
_BROKEN = (paramiko.SSHException, OSError, EOFError)
_GRACE_S = 5.0
_CONNECT_S = 20.0
_WINDOW_BYTES = 2**26
_PACKET_BYTES = 2**17
_CHUNK_BYTES = 2**20
_SENT_BYTES = 2**15 - 1024
"""The size that fits into one packet of sshd: of a larger piece paramiko copies the rest for every packet."""


@dataclass(kw_only=True, slots=True)
class SshTransport:
    """A `Transport` over SSH with one connection, opened at the first use. A broken connection is not reopened."""

    user: str | None
    host: str
    port: int
    config: SshConfig
    deadline_s: float
    """The deadline of each transfer."""
    _client: paramiko.SSHClient | None = None
    _jump: paramiko.SSHClient | None = None
    _guard: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, config: DeviceConfig) -> "SshTransport":
        user, host, port = address_of(config.address or "")
        return cls(user=user, host=host, port=port, config=config.ssh, deadline_s=config.deadline_s)

    @classmethod
    def identity(cls, config: DeviceConfig, _folder: Path) -> str:
        _, host, port = address_of(config.address or "")
        return f"ssh {host}:{port} {config.work_folder}"

    def push(self, source: Path, target: str) -> None:
        def transfer(arriving: str) -> None:
            remote, parent = shlex.quote(arriving), shlex.quote(posixpath.dirname(arriving))
            receive = f"mkdir {remote} && tar -C {remote} -xof -" if source.is_dir() else f"cat >{remote}"
            with self._stream(f"mkdir -p -- {parent} && {receive}", "push", f"{source} to {target}") as channel:
                _send(source, channel)

        push_atomically(self, source, target, transfer)

    def pull(self, source: str, target: Path) -> None:
        def transfer(fresh: Path) -> None:
            remote = shlex.quote(source)
            is_folder = self.run(RunRequest(["test", "-d", source], deadline_s=self.deadline_s)).exit_code == 0
            send = f"tar -C {remote} -cf - ." if is_folder else f"cat -- {remote}"
            with self._stream(send, "pull", f"{source} to {target}") as channel:
                _receive(channel, fresh, is_folder=is_folder)

        pull_atomically(source, target, transfer)

    def run(self, request: RunRequest) -> CommandResult:
        command, program = RemoteCommand.of(request), request.argv[0]
        started = time.monotonic()
        try:
            with self._connected().open_session(timeout=_CONNECT_S) as channel:
                channel.exec_command(command.start)
                out, err = _read_streams(channel, command, started + request.deadline_s)
        except TimeoutError as error:
            output = b"".join(part for part in error.args if isinstance(part, bytes))
            raise past_deadline(program, request.deadline_s, output) from None
        except _BROKEN as error:
            raise self._lost(f" while it ran {program!r}: {_reason(error)}") from error
        result = command.result(out, err, time.monotonic() - started)
        if result is None:
            reason = command.channel_output(err) or "the connection ended"
            raise self._lost(f" while it ran {program!r}: {reason}")
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
    def _stream(self, command: str, verb: str, purpose: str) -> Generator[paramiko.Channel]:
        """Run a command on the device for its input and output. Raises DeviceError unless it succeeds in time."""
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
                        # The command itself may have ended early: its stderr, read below, has the reason.
                        if not channel.exit_status_ready() or late.is_set():
                            raise error
                    status = channel.recv_exit_status()
                    stderr = b"".join(iter(lambda: channel.recv_stderr(_CHUNK_BYTES), b""))
                    reason = stderr.decode(errors="replace").strip()
                finally:
                    timer.cancel()
        except (*_BROKEN, tarfile.TarError) as error:
            if late.is_set():
                raise past_deadline(verb, self.deadline_s) from None
            broken = DeviceProblem.LOST if isinstance(error, EOFError | paramiko.SSHException) else None
            problem = broken or of_channel(_reason(error))
            raise DeviceError(f"cannot {verb} {purpose} ({self._name}): {_reason(error)}", problem=problem) from error
        if late.is_set():
            raise past_deadline(verb, self.deadline_s)
        if status != 0:
            problem = DeviceProblem.LOST if status < 0 else of_channel(reason)
            reason = reason or ("the connection ended" if status < 0 else f"exit code {status}")
            raise DeviceError(f"cannot {verb} {purpose} ({self._name}): {reason}", problem=problem)

    def _lost(self, reason: str) -> DeviceError:
        return DeviceError(f"lost the device {self._name}{reason}", problem=DeviceProblem.LOST)

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
                    f"{host}:{port} does not lead to {self._name}: {_reason(error)}", problem=DeviceProblem.LOST
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
                "if the device was installed again, remove its line from that file",
                problem=DeviceProblem.HOST_KEY,
            ) from error
        except paramiko.AuthenticationException as error:
            client.close()
            raise DeviceError(
                f"{host}:{port} refuses the login of {user or 'this user'}: {_reason(error)}; "
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
                f"{host}:{port} cannot be reached: {_reason(error)}", problem=DeviceProblem.LOST
            ) from error
        return client

    def _password(self) -> str | None:
        if (variable := self.config.password_variable) is None:
            return None
        if variable not in os.environ:
            raise DeviceError(f"device.ssh.password_variable={variable}: no such environment variable is set here")
        return os.environ[variable]


def address_of(address: str) -> tuple[str | None, str, int]:
    """Return user, host and port of `[user@]host[:port]`; an IPv6 host is in brackets."""
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


def _read_streams(channel: paramiko.Channel, command: RemoteCommand, latest: float) -> tuple[bytes, bytes]:
    """Return both streams up to their end or the channel's. Raises TimeoutError, with both, at the time `latest`."""
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
        # The order matters: data that arrived before the channel's end is read before the end counts.
        if (channel.closed or channel.eof_received) and not channel.recv_ready() and not channel.recv_stderr_ready():
            break
        if (remaining := latest - time.monotonic()) <= 0:
            _wait_for_kill(channel)
            raise TimeoutError(bytes(out), bytes(err))
        select.select([channel], [], [], min(remaining, 1.0))
    return bytes(out), bytes(err)


def _wait_for_kill(channel: paramiko.Channel) -> None:
    """End the channel's input, which makes the device kill the command, and wait a limited time for that."""
    channel.shutdown_write()
    latest = time.monotonic() + _GRACE_S
    while not channel.exit_status_ready() and time.monotonic() < latest:
        while channel.recv_ready():  # a full window would stop the device from ending
            channel.recv(2**20)
        while channel.recv_stderr_ready():
            channel.recv_stderr(2**20)
        time.sleep(0.05)


class _TarStream:
    """A channel as the file object of tarfile. The garbage collector closes paramiko's own files with warnings."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self.read = channel.recv
        self._send = channel.sendall

    def write(self, data: bytes) -> int:
        self._send(data)
        return len(data)


def _send(source: Path, channel: paramiko.Channel) -> None:
    stream: Any = _TarStream(channel)
    if source.is_dir():
        with tarfile.open(fileobj=stream, mode="w|", bufsize=_SENT_BYTES) as archive:
            archive.add(source, arcname=".")
        return
    with source.open("rb") as file:
        while data := file.read(_SENT_BYTES):
            channel.sendall(data)


def _receive(channel: paramiko.Channel, target: Path, *, is_folder: bool) -> None:
    stream: Any = _TarStream(channel)
    if is_folder:
        with tarfile.open(fileobj=stream, mode="r|", bufsize=_CHUNK_BYTES) as archive:
            archive.extractall(target, filter="data")  # a member's name cannot lead outside the folder
        return
    with target.open("wb") as file:
        while data := channel.recv(_CHUNK_BYTES):
            file.write(data)


def _reason(error: BaseException) -> str:
    return str(error).strip() or ("the connection ended" if isinstance(error, EOFError) else type(error).__name__)
