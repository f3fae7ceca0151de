"""moto's S3 server in a separate process, and an HTTP proxy in front of it that can refuse requests."""

from __future__ import annotations

import http.client
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import Request, urlopen

STARTS_S = 180
LATE_S = 4.0
"""Longer than the 3 s that the AWS SDK waits for an answer by default."""
_CODES = {500: "InternalError", 503: "SlowDown"}
KEY_ID, SECRET = "AKIAEXAMPLEOFTESTS", "a-secret-that-nobody-may-see"


class Fault(Enum):
    """What a proxy can do to a request, besides refusing it."""

    RESET = "close the connection without an answer"
    CUT = "close the connection in the middle of the answer"
    LATE = "answer after LATE_S"


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectStore:
    """An S3 server at the URL `endpoint`. `environment` has the variables with which a process uses it."""

    endpoint: str

    @property
    def environment(self) -> dict[str, str]:
        return store_environment(self.endpoint)

    def create_bucket(self, bucket: str) -> str:
        """Create a bucket and return its URL."""
        with urlopen(Request(f"{self.endpoint}/{bucket}", method="PUT")):
            return f"s3://{bucket}"


def store_environment(endpoint: str) -> dict[str, str]:
    """Return the environment variables with which a process uses the store at `endpoint`."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextmanager
def serve_object_store(folder: Path, **environment: str) -> Iterator[ObjectStore]:
    """Start an empty server, which is stopped at the end of the context. Its log is in `folder`."""
    log = folder / "moto.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
            cwd=folder,
            env=os.environ | environment,
            stdout=file,
            stderr=file,
        )
    try:
        deadline = time.monotonic() + STARTS_S
        while not (running := re.search(r"Running on (http://127\.0\.0\.1:\d+)", log.read_text())):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"moto's server does not start: {log.read_text()}")
            time.sleep(0.05)
        yield ObjectStore(endpoint=running[1])
    finally:
        process.kill()
        process.wait()


@contextmanager
def serve_proxy(store: ObjectStore, refuse: Callable[[str, str], int | Fault | None]) -> Iterator[str]:
    """Yield the endpoint of a proxy. `refuse`: maps a method and a path to the status of a refusal, a fault or None."""
    host = store.endpoint.removeprefix("http://")

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            body = _body(self)
            fault = refuse(self.command, self.path)
            if isinstance(fault, int):
                code = _CODES.get(fault, "AccessDenied")
                return self._respond(fault, [], f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())
            if fault is Fault.RESET:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
                self.connection.close()
                return None
            if fault is Fault.LATE:
                time.sleep(LATE_S)
            connection = http.client.HTTPConnection(host)
            framing = ("transfer-encoding", "content-length")
            headers = {name: value for name, value in self.headers.items() if name.lower() not in framing}
            connection.request(self.command, self.path, body, headers | {"Content-Length": str(len(body))})
            response = connection.getresponse()
            passed = [(k, v) for k, v in response.getheaders() if k.lower() not in ("transfer-encoding", "connection")]
            return self._respond(response.status, passed, response.read(), half=fault is Fault.CUT)

        def _respond(self, status: int, headers: list[tuple[str, str]], body: bytes, *, half: bool = False) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            if not any(name.lower() == "content-length" for name, _ in headers):
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[: len(body) // 2] if half else body)
                self.close_connection = self.close_connection or half

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _forward  # noqa: N815 - http.server's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _body(request: BaseHTTPRequestHandler) -> bytes:
    if "chunked" not in request.headers.get("Transfer-Encoding", ""):
        return request.rfile.read(int(request.headers.get("Content-Length", 0)))
    body = b""
    while size := int(request.rfile.readline().split(b";")[0], 16):
        body += request.rfile.read(size)
        request.rfile.readline()
    request.rfile.readline()
    return body
