"""Unusable devices: an adbd that accepts no key, and one that never answers."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

_AUTH, _TOKEN = 0x48545541, 1  # "AUTH" of ADB's protocol


class RefusingAdbd:
    """A listener on `port` that answers each greeting of an adb server with a demand for a key, or not at all."""

    def __init__(self, *, demands_key: bool) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._demands_key = demands_key
        self._open: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for endpoint in (self._listener, *self._open):
            endpoint.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, struct.error):
            while True:
                header = connection.recv(24, socket.MSG_WAITALL)
                _, _, _, size, _, _ = struct.unpack("<6I", header)
                connection.recv(size, socket.MSG_WAITALL)
                if self._demands_key:
                    token = bytes(range(20))
                    head = struct.pack("<6I", _AUTH, _TOKEN, 0, len(token), sum(token), _AUTH ^ 0xFFFFFFFF)
                    connection.sendall(head + token)
