"""The server of `qnnsweep ui`: it serves reports and files of runs to browsers of this machine, for reading only.

Only files that a listing of the store names are served, so that no path of a request reaches the file system. All
files but the reports are served as data: a browser runs no script in them.
"""

import os
import shutil
import socket
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from markupsafe import escape

from qnnsweep.flows.runs.site import Site
from qnnsweep.tasks.report.templates import script_digests
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store

ADDRESS = "127.0.0.1"
_RUNS = "runs"
_TYPES = {".json": "application/json", ".csv": "text/csv", ".tsv": "text/tab-separated-values", ".svg": "image/svg+xml"}
_TEXTS = (".txt", ".log", ".yaml", ".md", ".html", ".py")
_PAGE = "default-src 'none'; style-src 'unsafe-inline'; script-src {scripts}; base-uri 'none'; form-action 'none'"
_AS_DATA = "sandbox; default-src 'none'; style-src 'unsafe-inline'"
_MOST_CONNECTIONS = 32
_SILENCE_S, _LONGEST_S = 30.0, 600.0
"""The time that a connection may be silent, and that a request with its answer may take."""
_STYLE = "body{font:16px/1.6 system-ui;margin:2rem;color-scheme:light dark}"


class ReportServer(ThreadingHTTPServer):
    """A server on 127.0.0.1 that answers GET and HEAD."""

    daemon_threads = True

    def __init__(self, store: Store, port: int) -> None:
        self.store = store
        self.policy = _PAGE.format(scripts=" ".join(f"'sha256-{digest}'" for digest in script_digests()))
        self._open: dict[socket.socket, float] = {}
        self._site: tuple[list[str], Site] = ([], Site(store, with_reports=True))
        self._lock = threading.Lock()
        super().__init__((ADDRESS, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, if there are not too many."""
        if len(self._open) >= _MOST_CONNECTIONS:
            with suppress(OSError):
                request.send(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self.shutdown_request(request)
            return
        self.begin(request)
        super().process_request(request, client_address)

    def begin(self, connection: socket.socket) -> None:
        """Note that a connection waits for a request from now on."""
        self._open[connection] = time.monotonic()

    def shutdown_request(self, request: Any) -> None:
        self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End the connections whose request takes too long; called by `serve_forever` twice a second."""
        for connection, began in [*self._open.items()]:
            if time.monotonic() - began > _LONGEST_S:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that broke: the terminal shows only the address."""

    def page(self, name: str) -> str | None:
        """Return a page of the history, of the runs that there are now; None if there is no such page."""
        runs = tables.runs(self.store)
        with self._lock:
            if self._site[0] != runs:
                self._site = (runs, Site(self.store, with_reports=True))
            return self._site[1].page(name or "index.html")

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"


class _Refused(Exception):
    """A request that is not answered with a file."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer  # pyright: ignore[reportIncompatibleVariableOverride] - the only server of this handler
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "qnnsweep", ""
    timeout = _SILENCE_S
    has_begun = False
    """Whether the head of an answer has been sent."""

    def handle_one_request(self) -> None:
        self.has_begun = False
        self.server.begin(self.connection)
        super().handle_one_request()

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Log nothing: the terminal shows only the address."""

    def _answer(self, *, with_body: bool) -> None:
        try:
            self._check_host()
            name = unquote(urlsplit(self.path).path, errors="surrogateescape").removeprefix("/")
            if (page := self.server.page(name)) is not None:
                kind = "text/html; charset=utf-8"
                self._send(page.encode(), kind, HTTPStatus.OK, with_body, policy=self.server.policy)
            elif name.endswith("/"):
                self._list(name, with_body)
            else:
                self._file(name, with_body)
        except _Refused as refused:
            self._refuse(refused.status, refused.reason, with_body)
        except OSError as error:
            if self.has_begun or error.filename is None:  # the connection broke, or the file in the midst of it
                raise
            self._refuse(HTTPStatus.NOT_FOUND, os.strerror(error.errno or 0), with_body)
        except Exception as error:
            if self.has_begun:
                raise
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"cannot be read: {type(error).__name__}", with_body)

    def _refuse(self, status: HTTPStatus, reason: str, with_body: bool) -> None:
        self._send(f"{reason}\n".encode(errors="replace"), "text/plain; charset=utf-8", status, with_body)

    def _check_host(self) -> None:
        """Refuse a request whose host name is another: a foreign page can give its name the address 127.0.0.1."""
        port = self.server.server_port
        if self.headers.get("Host") not in (f"{ADDRESS}:{port}", f"localhost:{port}"):
            raise _Refused(HTTPStatus.FORBIDDEN, f"open {self.server.url}")

    def _list(self, folder: str, with_body: bool) -> None:
        names = [name for name in self._names(folder) if name.startswith(folder)]
        if not names:
            raise _Refused(HTTPStatus.NOT_FOUND, f"there is no folder {folder}")
        entries = {name.removeprefix(folder): f"/{_quoted(name)}" for name in names}
        self._page(folder.rstrip("/"), entries, with_body)

    def _file(self, name: str, with_body: bool) -> None:
        if name not in self._names(name):
            raise _Refused(HTTPStatus.NOT_FOUND, f"there is no file {name}")
        path = self.server.store.files.local(name)
        # qnnsweep writes the pages in the folder of a run, such as report.html. Whoever else wrote one there, only the
        # scripts of this installation run in it.
        is_page = name.endswith(".html") and "/files/" not in name
        kind = "text/html; charset=utf-8" if is_page else _type_of(name)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._head(HTTPStatus.OK, kind, size, policy=self.server.policy if is_page else _AS_DATA)
            if with_body:
                shutil.copyfileobj(file, self.wfile)

    def _names(self, name: str) -> list[str]:
        """Return the names of all files of the run to which the name belongs; none if there is no such run.

        A symbolic link is left out, because it can lead out of the folder.
        """
        store, (top, _, rest) = self.server.store, name.partition("/")
        run = rest.partition("/")[0]
        if top != _RUNS or run not in tables.runs(store):
            return []
        names = store.files.names(f"{_RUNS}/{run}")
        return names if store.url else [name for name in names if _is_below(name, store)]

    def _page(self, title: str, links: dict[str, str], with_body: bool) -> None:
        items = "".join(f'<li><a href="{escape(link)}">{escape(text)}</a>' for text, link in links.items())
        body = (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>{escape(title)} · qnnsweep</title><style>{_STYLE}</style><h1>{escape(title)}</h1>"
            + (f"<ul>{items}</ul>" if items else "<p>There is no run yet.</p>")
        )
        self._send(body.encode(errors="replace"), "text/html; charset=utf-8", HTTPStatus.OK, with_body)

    def _send(self, body: bytes, kind: str, status: HTTPStatus, with_body: bool, *, policy: str = _AS_DATA) -> None:
        self._head(status, kind, len(body), policy=policy)
        if with_body:
            self.wfile.write(body)

    def _head(self, status: HTTPStatus, kind: str, size: int, *, policy: str) -> None:
        self.has_begun = True
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Content-Security-Policy", policy)
        self.end_headers()


def _quoted(name: str) -> str:
    """Return the path of a name in a link. The name of a file can be any bytes."""
    return quote(os.fsencode(name))


def _is_below(name: str, store: Store) -> bool:
    return (store.root / name).resolve() == store.root.resolve() / name


def _type_of(name: str) -> str:
    suffix = Path(name).suffix
    if suffix in _TEXTS:
        return "text/plain; charset=utf-8"
    return _TYPES.get(suffix, "application/octet-stream")
