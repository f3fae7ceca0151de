"""An SSH server that accepts every password and answers commands with bytes of the test's choice."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable

import paramiko

Answer = Callable[[paramiko.Channel, bytes], None]
"""A function that answers a command line on its channel. The channel is closed afterwards."""


def end_at_once(channel: paramiko.Channel, command: bytes) -> None:
    channel.send_exit_status(0)


def says(stdout: bytes) -> Answer:
    """Return an answer: every command of `Transport.run` succeeds and prints `stdout`."""

    def answer(channel: paramiko.Channel, command: bytes) -> None:
        size = re.search(rb"head -c (\d+)", command)
        assert size is not None, command
        script = b""
        while len(script) < int(size[1]):
            script += channel.recv(65536)
        (token,) = set(re.findall(rb"qnnsweep-[0-9a-f]{24}", script))
        channel.sendall(b"\n%b begin\n%b\n%b end 0\n" % (token, stdout, token))
        channel.sendall_stderr(b"\n%b begin\n\n%b end 0\n" % (token, token))
        channel.send_exit_status(0)

    return answer


class LyingSshd:
    """The server. It listens on loopback."""

    def __init__(self, answer: Answer = end_at_once) -> None:
        self.answer = answer
        self.frozen = threading.Event()
        """Set while no request to start a command is answered."""
        self.key = paramiko.RSAKey.generate(2048)
        self.passwords: list[str] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def line(self) -> str:
        """Return the server's line of a known_hosts file."""
        return f"[127.0.0.1]:{self.port} {self.key.get_name()} {self.key.get_base64()}\n"

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                transport = paramiko.Transport(connection)
                transport.add_server_key(self.key)
                with contextlib.suppress(paramiko.SSHException, EOFError, OSError):  # the client went
                    transport.start_server(server=_Session(self))


class _Session(paramiko.ServerInterface):
    def __init__(self, sshd: LyingSshd) -> None:
        self._sshd = sshd

    def check_auth_password(self, username: str, password: str) -> int:
        self._sshd.passwords.append(password)
        return paramiko.AUTH_SUCCESSFUL

    def get_allowed_auths(self, username: str) -> str:
        return "password"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        while self._sshd.frozen.is_set():
            time.sleep(0.05)

        def answer() -> None:
            with contextlib.suppress(OSError, EOFError), channel:  # the client may have gone
                self._sshd.answer(channel, command)

        threading.Thread(target=answer, daemon=True).start()
        return True
