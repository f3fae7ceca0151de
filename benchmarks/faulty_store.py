"""A proxy in front of an S3 server whose requests fail by chance: refused, answered late, cut off or not answered."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from typing import Literal

StoreFault = Literal["500", "503", "late", "cut", "reset"]
STORE_FAULTS: tuple[StoreFault, ...] = ("500", "503", "late", "cut", "reset")
LATE_S = 4.0
_CODES = {"500": "InternalError", "503": "SlowDown"}
_MOST_BYTES = 1 << 26


class FaultyStore:
    """The proxy, which runs in a thread. It forwards every request until `fail` is called."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("http://").partition(":")
        self._upstream = host, int(port)
        self._chance = random.Random(0)  # noqa: S311 - no secret
        self._fault: StoreFault | None = None
        self._share = 0.0
        self.hit = Counter[str]()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        self._ready.wait()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def fail(self, fault: StoreFault | None, share: float = 0.0, seed: int = 0) -> None:
        """Let a share of the requests fail from now on. `fault`: None for no fault any more."""
        self._chance, self._share, self._fault = random.Random(seed), share, fault  # noqa: S311 - no secret
        if fault is not None:
            self.hit.clear()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, limit=_MOST_BYTES)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopped.wait()
        server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._request(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client or the proxy has ended
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. Return whether the connection can be used again."""
        head, body = await _read_request(reader)
        fault = self._fault if self._chance.random() < self._share else None
        self.hit[fault or "passed"] += 1
        if fault == "reset":
            writer.transport.abort()
            return False
        if fault in _CODES:
            name = _CODES[fault]
            text = f"<?xml version='1.0'?><Error><Code>{name}</Code><Message>a bad day</Message></Error>".encode()
            lines = f"HTTP/1.1 {fault} {name}\r\nContent-Type: application/xml\r\nContent-Length: {len(text)}\r\n\r\n"
            writer.write(lines.encode() + (b"" if head.startswith(b"HEAD") else text))
            await writer.drain()
            return True
        if fault == "late":
            await asyncio.sleep(LATE_S)
        answer = await self._forwarded(head, body)
        end = answer.find(b"\r\n\r\n") + 4
        if fault == "cut" and len(answer) - end > 10:
            writer.write(answer[: (end + len(answer)) // 2])
            await writer.drain()
            return False
        writer.write(answer.replace(b"Connection: close\r\n", b"", 1))
        await writer.drain()
        return b"content-length" in answer[:end].lower() or head.startswith(b"HEAD")

    async def _forwarded(self, head: bytes, body: bytes) -> bytes:
        lines = (line for line in head.split(b"\r\n") if not line.lower().startswith((b"connection:", b"expect:")))
        reader, writer = await asyncio.open_connection(*self._upstream, limit=_MOST_BYTES)
        writer.write(b"\r\n".join(lines).rstrip(b"\r\n") + b"\r\nConnection: close\r\n\r\n" + body)
        answer = await reader.read(-1)
        writer.close()
        return answer


async def _read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    headers = {name.strip().lower(): value.strip() for name, _, value in lines}
    if b"content-length" in headers:
        return head, await reader.readexactly(int(headers[b"content-length"]))
    body = b""
    if headers.get(b"transfer-encoding") == b"chunked":
        while True:
            line = await reader.readline()
            size = int(line.split(b";")[0], 16)
            body += line + await reader.readexactly(size + 2)
            if size == 0:
                break
    return head, body
