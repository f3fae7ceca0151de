"""A channel to a board or a simulator host over SSH, with paramiko."""

import contextlib
import os
import posixpath
import select
import shlex
import tarfile
import threading
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paramiko

from qnnsweep.conf.devices import DeviceConfig, HostKeys, SshConfig
from qnnsweep.tasks.devices.atomic_transfer import pull_atomically, push_atomically
from qnnsweep.tasks.devices.known_hosts import SSH_PORT, KnownHosts, RevokedHostKey, UnknownHostKey
from qnnsweep.tasks.devices.output import BoundedOutput
from qnnsweep.tasks.devices.remote_command import RemoteCommand
from qnnsweep.tasks.devices.transport import CommandResult, Fence, RunRequest, batches, past_deadline
from qnnsweep.tasks.devices.triage import of_channel
from qnnsweep.tasks.errors import DeviceError, DeviceProblem, QnnsweepError
from qnnsweep.tasks.storage.atomic import translate_os_errors

# By default, paramiko prefers other ciphers, which it computes at half the speed.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
_REKEY_BYTES = 2**35
"""By default, paramiko exchanges keys every 512 MiB, and this exchange sometimes hangs in the middle of a stream. The
limit of OpenSSH for these ciphers is of the order of 32 GiB."""
_REASON_BYTES = 2**12
_GRACE_S = 5.0
_CONNECT_S = 20.0
_WINDOW_BYTES = 2**26
_PACKET_BYTES = 2**17
_CHUNK_BYTES = 2**20
_SENT_BYTES = 2**15 - 1024
"""The size of a piece that fits into one packet of sshd. After each packet of a larger piece, paramiko would copy the
rest of the piece."""


@dataclass(kw_only=True, slots=True)
class SshTransport:
    """A `Transport` over SSH with one connection. The connection is opened at the first use and never reopened."""

    user: str | None
    host: str
    port: int
    config: SshConfig
    deadline_s: float
    """The deadline of each transfer."""
    fence: Fence | None = None
    _transport: paramiko.Transport | None = None
    _clients: list[paramiko.SSHClient] = field(default_factory=list[paramiko.SSHClient])
    """The clients to close: the client of the jump host, if there is a jump host, and the client of the device."""
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
        with push_atomically(self, source, target) as arriving:
            remote, parent = shlex.quote(arriving), shlex.quote(posixpath.dirname(arriving))
            receive = f"mkdir {remote} && tar -C {remote} -xof -" if source.is_dir() else f"cat >{remote}"
            with self._stream(f"mkdir -p -- {parent} && {receive}", "push", f"{source} to {target}") as channel:
                _send(source, channel)

    def pull(self, folder: str, sizes: Mapping[str, int], target: Path) -> None:
        with pull_atomically(sizes, target) as arriving:
            for names in batches([*sizes]):
                # Only the contents are sent: the sizes, which are known, separate the files.
                send = f"cd -- {shlex.quote(folder)} && cat -- {shlex.join(names)}"
                with self._stream(send, "pull", f"{folder} to {target}") as channel:
                    for name in names:
                        _receive(channel, arriving / name, sizes[name])
                    if channel.recv(1):
                        raise DeviceError(f"cannot pull {folder} ({self._name}): it sends more than announced")

    def run(self, request: RunRequest) -> CommandResult:
        command, started, late = RemoteCommand.of(request, self.fence), time.monotonic(), threading.Event()
        try:
            with self._connected().open_session(timeout=_CONNECT_S) as channel:
                with _closed_after(request.deadline_s, channel, late):
                    channel.exec_command(command.start)  # has no timeout of its own
                out, err = _read_streams(channel, command, started + request.deadline_s)
        except TimeoutError:
            raise past_deadline(request.argv[0], request.deadline_s) from None
        except QnnsweepError:
            raise
        except Exception as error:
            if late.is_set():
                raise past_deadline(request.argv[0], request.deadline_s) from None
            raise self._lost(f" while it ran {request.argv[0]!r}: {_reason(error)}") from error
        return command.result(out, err, time.monotonic() - started, self._name)

    def close(self) -> None:
        with self._guard:
            for client in reversed(self._clients):
                client.close()

    @property
    def _name(self) -> str:
        return f"{self.host}:{self.port}"

    @contextlib.contextmanager
    def _stream(self, command: str, verb: str, purpose: str) -> Generator[paramiko.Channel]:
        """Run a command and yield its channel. Raises DeviceError if the command fails or passes its deadline."""
        late = threading.Event()
        try:
            opened = self._connected().open_session(_WINDOW_BYTES, _PACKET_BYTES, _CONNECT_S)
            with opened as channel, _closed_after(self.deadline_s, channel, late):
                channel.exec_command(command)
                try:
                    yield channel
                    channel.shutdown_write()
                except OSError as error:
                    # The command itself may have ended early: its stderr, read below, has the reason.
                    if not channel.exit_status_ready() or late.is_set():
                        raise error
                status = channel.recv_exit_status()
                stderr = BoundedOutput()
                while data := channel.recv_stderr(_CHUNK_BYTES):
                    stderr.add(data)
                reason = stderr.end(_REASON_BYTES).decode(errors="replace").strip()
        except QnnsweepError:
            raise
        except Exception as error:
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
            if self._transport is None:
                self._transport = self._connect()
            if not self._transport.is_active():
                raise self._lost(": the connection is gone")
            return self._transport

    def _connect(self) -> paramiko.Transport:
        tunnel = None
        if self.config.jump is not None:
            user, host, port = address_of(self.config.jump)
            jump = self._log_in(user, host, port, password_variable=self.config.jump_password_variable)
            try:
                tunnel = jump.open_channel("direct-tcpip", (self.host, self.port), ("127.0.0.1", 0), timeout=_CONNECT_S)
            except Exception as error:
                raise DeviceError(
                    f"the jump host {host}:{port} cannot reach {self._name}: {_reason(error)}",
                    problem=DeviceProblem.LOST,
                ) from error
        variable = self.config.password_variable
        transport = self._log_in(self.user, self.host, self.port, password_variable=variable, tunnel=tunnel)
        transport.set_keepalive(self.config.keep_alive_s)
        return transport

    def _log_in(
        self,
        user: str | None,
        host: str,
        port: int,
        *,
        password_variable: str | None,
        tunnel: paramiko.Channel | None = None,
    ) -> paramiko.Transport:
        config, client = self.config, paramiko.SSHClient()
        self._clients.append(client)
        known = Path(config.known_hosts or "~/.ssh/known_hosts").expanduser()
        password = _password(password_variable)
        try:
            KnownHosts(known, accept_new=config.host_keys is HostKeys.accept_new).install(client, host, port)
            client.connect(
                host,
                port=port,
                username=user,
                password=password,
                key_filename=str(Path(config.key_file).expanduser()) if config.key_file else None,
                allow_agent=config.agent,
                look_for_keys=config.key_file is None and password_variable is None,
                timeout=_CONNECT_S,
                banner_timeout=_CONNECT_S,
                auth_timeout=_CONNECT_S,
                channel_timeout=_CONNECT_S,
                sock=tunnel,
                transport_factory=_transport,
            )
        except Exception as error:
            client.close()
            raise _login_error(error, f"{host}:{port}", user, known) from error
        transport = client.get_transport()
        assert transport is not None
        return transport


def address_of(address: str) -> tuple[str | None, str, int]:
    """Return user, host and port of `[user@]host[:port]`; an IPv6 host is in brackets."""
    user, _, rest = address.rpartition("@")
    if rest.startswith("["):
        host, _, port = rest[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = rest.partition(":")
    return user or None, host, int(port or SSH_PORT)


def _login_error(error: Exception, address: str, user: str | None, known: Path) -> DeviceError:
    problem = DeviceProblem.LOST
    message = f"{address} cannot be reached: {_reason(error)}"
    if isinstance(error, paramiko.BadHostKeyException):
        problem = DeviceProblem.HOST_KEY
        message = (
            f"wrong host key: {address} has another key than the one in {known}; "
            "if the device was installed again, remove its line from that file"
        )
    elif isinstance(error, paramiko.AuthenticationException):
        problem = DeviceProblem.LOGIN
        message = (
            f"{address} refuses the login of {user or 'this user'}: {_reason(error)}; "
            "check device.ssh: key_file, agent, password_variable, jump_password_variable"
        )
    elif isinstance(error, RevokedHostKey):
        problem = DeviceProblem.HOST_KEY
        message = f"revoked host key: {known} says that the key of {address} must not be trusted"
    elif isinstance(error, UnknownHostKey):
        problem = DeviceProblem.HOST_KEY
        message = (
            f"unknown host key: {address} is not in {known}; connect once with ssh and look at its key, "
            "or set device.ssh.host_keys=accept_new"
        )
    return DeviceError(message, problem=problem)


def _password(variable: str | None) -> str | None:
    """Return the value of an environment variable of this process. Raises DeviceError if it is not set."""
    if variable is not None and variable not in os.environ:
        raise DeviceError(f"device.ssh names the variable {variable}, which is not set here: export {variable}")
    return None if variable is None else os.environ[variable]


def _transport(sock: Any, **options: Any) -> paramiko.Transport:
    transport = paramiko.Transport(sock, **options)
    security = transport.get_security_options()
    security.ciphers = [name for name in _CIPHERS if name in security.ciphers]
    transport.packetizer.REKEY_BYTES = _REKEY_BYTES
    return transport


@contextlib.contextmanager
def _closed_after(seconds: float, channel: paramiko.Channel, late: threading.Event) -> Generator[None]:
    """Close the channel if this context lasts longer, and set `late`. What waits for the channel then fails."""

    def give_up() -> None:
        late.set()
        with contextlib.suppress(EOFError, OSError):  # the connection has just ended, which the caller sees too
            channel.close()

    timer = threading.Timer(seconds, give_up)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _read_streams(
    channel: paramiko.Channel, command: RemoteCommand, latest: float
) -> tuple[BoundedOutput, BoundedOutput]:
    """Return stdout and stderr up to the end of the command or of the channel. Raises DeadlinePassed after `latest`."""
    out, err = BoundedOutput(), BoundedOutput()
    channel.settimeout(max(0.1, latest - time.monotonic()))
    channel.sendall(command.script)
    while True:
        if channel.recv_ready():
            out.add(channel.recv(_CHUNK_BYTES))
        if channel.recv_stderr_ready():
            err.add(channel.recv_stderr(_CHUNK_BYTES))
        if command.ended(out, err):
            break
        # The channel's end is checked before the remaining data, because data may arrive between the two checks.
        if (channel.closed or channel.eof_received) and not channel.recv_ready() and not channel.recv_stderr_ready():
            break
        if (remaining := latest - time.monotonic()) <= 0:
            _wait_for_kill(channel)
            raise past_deadline(command.request.argv[0], command.request.deadline_s, out.bytes() + err.bytes())
        select.select([channel], [], [], min(remaining, 1.0))
    return out, err


def _wait_for_kill(channel: paramiko.Channel) -> None:
    """End the channel's input, so that the device kills the command, and wait a limited time for the command's end."""
    channel.shutdown_write()
    latest = time.monotonic() + _GRACE_S
    while not channel.exit_status_ready() and time.monotonic() < latest:
        if channel.recv_ready():  # a full window would block the command's end
            channel.recv(_CHUNK_BYTES)
        elif channel.recv_stderr_ready():
            channel.recv_stderr(_CHUNK_BYTES)
        else:
            time.sleep(0.05)


def _tar_stream(channel: paramiko.Channel) -> Any:
    """Return a file object for `tarfile`. paramiko's file objects cause warnings when they are garbage-collected."""
    return SimpleNamespace(write=channel.sendall)


def _send(source: Path, channel: paramiko.Channel) -> None:
    if source.is_dir():
        with tarfile.open(fileobj=_tar_stream(channel), mode="w|", bufsize=_SENT_BYTES) as archive:
            archive.add(source, arcname=".")
        return
    with source.open("rb") as file:
        while data := file.read(_SENT_BYTES):
            channel.sendall(data)


def _receive(channel: paramiko.Channel, target: Path, size: int) -> None:
    """Write the next `size` bytes of the channel to a new file; fewer if the channel ends."""
    with translate_os_errors(target), target.open("xb") as file:
        while size and (data := _recv(channel, min(size, _CHUNK_BYTES))):
            file.write(data)
            size -= len(data)


def _recv(channel: paramiko.Channel, count: int) -> bytes:
    """Return the next bytes of the channel. Raises SSHException, not OSError, if the channel fails."""
    try:
        return channel.recv(count)
    except OSError as error:
        raise paramiko.SSHException(str(error)) from error


def _reason(error: BaseException) -> str:
    return str(error).strip() or ("the connection ended" if isinstance(error, EOFError) else type(error).__name__)
