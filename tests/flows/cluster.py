"""A cluster on one machine: PostgreSQL, a Prefect server that uses it, and hosts that can lose power."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from tests.devices.loopback import ComponentMissing, free_port, require_root
from tests.processes import T, eventually

STARTUP_S = 180
POLL_S = 0.1
PATIENCE_S = 60
"""How long a request may take on a machine with other load, for example while the server creates its database."""
_USER, _PASSWORD = "qnnsweep", "the-password-of-tests"
LOGIN = f"{_USER}:{_PASSWORD}"
PROTECTED = {
    "PREFECT_SERVER_API_AUTH_STRING": LOGIN,
    "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
    "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": "",
}
"""The variables with which docs/prefect.md starts a server."""
_POSTGRESQL = Path("/usr/lib/postgresql/15/bin")


def wait_until(condition: Callable[[], T], within_s: float, what: str) -> T:
    """Return the result of `condition` as soon as it is true. `what`: the condition in words, for the failure."""
    result = eventually(condition, within_s)
    assert result, f"not within {within_s:g} s: {what}"
    return result


def require() -> None:
    """Raise ComponentMissing unless PostgreSQL and bwrap are installed, and NeedsRoot unless the user is."""
    require_root("to run PostgreSQL as another user and to start sandboxes")
    lacks = [] if (_POSTGRESQL / "postgres").exists() else ["PostgreSQL 15 (apt install postgresql-15)"]
    lacks += [] if shutil.which("bwrap") else ["bwrap (apt install bubblewrap)"]
    if lacks:
        raise ComponentMissing(f"many machines lack {', '.join(lacks)}: run `.ci/machine` on Debian 12 as root")


@contextlib.contextmanager
def postgresql() -> Generator[str]:
    """Start an empty database and yield its URL. It runs as the user `postgres`, which may not read root's folders."""
    require()
    as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--"]
    with tempfile.TemporaryDirectory(prefix="qnnsweep-postgresql-", ignore_cleanup_errors=True) as folder:
        shutil.chown(folder, "postgres", "postgres")
        quiet: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        initdb = [_POSTGRESQL / "initdb", "-D", f"{folder}/data", "-U", "prefect", "-A", "trust", "-E", "UTF8"]
        subprocess.run([*as_user, *initdb, "--no-sync"], check=True, **quiet)
        port = free_port()
        options = ["-h", "127.0.0.1", "-p", str(port), "-k", folder, "-F", "-c", "max_connections=50"]
        server = subprocess.Popen([*as_user, _POSTGRESQL / "postgres", "-D", f"{folder}/data", *options], **quiet)
        try:
            ready = [_POSTGRESQL / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
            wait_until(lambda: subprocess.run(ready, check=False).returncode == 0, STARTUP_S, "PostgreSQL answers")
            yield f"postgresql+asyncpg://prefect@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(timeout=60)


@contextlib.contextmanager
def prefect_server(
    folder: Path,
    log: Path,
    database: str | None = None,
    *,
    protected: bool = True,
    variables: Mapping[str, str] | None = None,
) -> Generator[httpx.Client]:
    """Run `prefect server start` and yield a client of it that has logged in.

    `folder`: the server's home. `database`: the URL of its database, by default a file in its home.
    `protected`: start the server as docs/prefect.md does. If not, it has Prefect's defaults and needs no login.
    `variables`: further variables of its environment.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    environment = os.environ | {
        "PREFECT_HOME": str(folder),
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_CSRF_TOKEN_EXPIRATION": "P1D",  # a client keeps its token, and the tests may take hours
    }
    environment |= {**(PROTECTED if protected else {}), **(variables or {})}
    if database is not None:
        environment["PREFECT_API_DATABASE_CONNECTION_URL"] = database
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as out, _client(url, protected=protected) as client:
        server = subprocess.Popen(command, env=environment, cwd=folder, stdout=out, stderr=out)
        try:
            wait_until(lambda: _answers(client), STARTUP_S, f"the Prefect server answers, see {log}")
            if protected:
                _get_csrf_token(client)
            yield client
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(timeout=60)


@contextlib.contextmanager
def client_of(url: str) -> Generator[httpx.Client]:
    """Yield a client of a running server, which has logged in."""
    with _client(url, protected=True) as client:
        _get_csrf_token(client)
        yield client


def _client(url: str, *, protected: bool) -> httpx.Client:
    return httpx.Client(base_url=url, auth=(_USER, _PASSWORD) if protected else None, timeout=PATIENCE_S)


def address(server: httpx.Client) -> str:
    """Return the PREFECT_API_URL of a server."""
    return str(server.base_url).rstrip("/")


def client_environment(server: httpx.Client) -> dict[str, str]:
    """Return the environment variables with which a process logs in to a server."""
    return {"PREFECT_API_URL": address(server), "PREFECT_API_AUTH_STRING": LOGIN}


def client_settings(server: httpx.Client) -> dict[Any, str]:
    """Return the settings of Prefect with which this process logs in to a server."""
    return {"api.url": address(server), "api.auth_string": LOGIN}


def _get_csrf_token(client: httpx.Client) -> None:
    """Let all later requests of the client have a token, as the requests of Prefect's clients do."""
    client_id = str(uuid4())
    token = client.get("/csrf-token", params={"client": client_id}).raise_for_status().json()["token"]
    client.headers.update({"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": client_id})


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


@dataclass(kw_only=True)
class Host:
    """A machine that runs a worker: it has a host name, processes and folders of its own, and can lose power."""

    name: str
    folder: Path
    environment: dict[str, str]
    _process: subprocess.Popen[bytes] | None = field(default=None)
    _temporary: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="host-")))
    """Not below `folder`, because the path of a socket has at most 107 bytes."""

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def start(self, *command: str) -> None:
        folders = {"HOME": self.folder / "home", "TMPDIR": self._temporary, "PREFECT_HOME": self.folder / "prefect"}
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        environment = self.environment | {name: str(folder) for name, folder in folders.items()}
        sandbox = [
            "bwrap", "--die-with-parent", "--unshare-pid", "--unshare-uts", "--hostname", self.name,
            "--dev-bind", "/", "/", "--proc", "/proc", "--chdir", str(self.folder), "--",
        ]  # fmt: skip
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [*sandbox, *command], env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def lose_power(self) -> None:
        """Kill every process at once: the processes of a sandbox die with its first process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            shutil.rmtree(self._temporary, ignore_errors=True)
