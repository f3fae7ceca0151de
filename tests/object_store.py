"""moto's S3 server as a process of its own, over HTTP; and a way to it that can fail."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import Request, urlopen

STARTS_S = 180
KEY_ID, SECRET = "AKIAEXAMPLEOFTESTS", "a-secret-that-nobody-may-see"


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectStore:
    """A server that answers at `endpoint`; `environment` is all that a process needs to use it."""

    endpoint: str

    @property
    def environment(self) -> dict[str, str]:
        return reaching(self.endpoint)

    def make(self, bucket: str) -> str:
        """A new bucket; its URL."""
        with urlopen(Request(f"{self.endpoint}/{bucket}", method="PUT")):
            return f"s3://{bucket}"


def reaching(endpoint: str) -> dict[str, str]:
    """The variables that lead to a store."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextmanager
def serving(folder: Path, **environment: str) -> Iterator[ObjectStore]:
    """A server with nothing in it, until the context ends. `folder` gets its log."""
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
def between(store: ObjectStore, answer: Callable[[str, str], int | None]) -> Iterator[str]:
    """The endpoint of a way to the store. `answer`, told method and path, may give a status instead of passing on."""
    host = store.endpoint.removeprefix("http://")

    class Way(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = _body(self)
            if (refused := answer(self.command, self.path)) is not None:
                return self._answer(refused, [], b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>")
            connection = http.client.HTTPConnection(host)
            kept = {k: v for k, v in self.headers.items() if k.lower() not in ("transfer-encoding", "content-length")}
            connection.request(self.command, self.path, body, kept | {"Content-Length": str(len(body))})
            response = connection.getresponse()
            passed = [(k, v) for k, v in response.getheaders() if k.lower() not in ("transfer-encoding", "connection")]
            return self._answer(response.status, passed, response.read())

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            if not any(name.lower() == "content-length" for name, _ in headers):
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on  # noqa: N815 - http.server's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Way)
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
