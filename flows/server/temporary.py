"""Prefect's temporary server, in a session of its own. It never outlives the process that started it.

A run needs a server, and starts a temporary server if the user has configured none. Prefect would also start one, but
Prefect's own way has four problems: Ctrl-C in the terminal stops the server before its clients; a process that is
killed leaves its server running; every user of the machine can use the server; and the client imports the code of the
server, which takes seconds. The server here accepts only requests with a random password, which is in the environment
of the server and in the settings of the process that started it.
"""

import atexit
import fcntl
import gc
import logging
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from qnnsweep.conf.errors import ENVIRONMENT_UNUSABLE
from qnnsweep.tasks.errors import EnvironmentUnusable
from qnnsweep.tasks.storage.environment import changed_environment

STARTUP_S = 120.0
"""The longest start of the server. It takes up to half a minute on a small machine."""
_RETRY_S = 0.2
_END_S = 5.0
_NOT_STARTED = 3
"""The exit code of a server whose application does not start. The code is that of uvicorn."""
_SERVER_ENVIRONMENT = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
_SERVER_LOGIN = "PREFECT_SERVER_API_AUTH_STRING"
_REASON = re.compile(r"[\w.]+(Error|Exception): ")
_API_VARIABLES = ("PREFECT_API", "PREFECT_PROFILE")
_CLIENT_URL, _CLIENT_LOGIN = "PREFECT_API_URL", "PREFECT_API_AUTH_STRING"
_USER = "qnnsweep"


class TemporaryServer:
    """The temporary server of this process. The constructor starts the server, and does not wait for it."""

    def __init__(self) -> None:
        self._password = secrets.token_urlsafe(32)
        self._stopped = False
        # The server gets a socket that listens already. So its port cannot be taken, and a request waits for its start.
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self._url = f"http://127.0.0.1:{listening.getsockname()[1]}/api"
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "qnnsweep.flows.server.temporary", str(listening.fileno())],
                env={**os.environ, **_SERVER_ENVIRONMENT, _SERVER_LOGIN: f"{_USER}:{self._password}"},
                stdin=subprocess.PIPE,
                pass_fds=[listening.fileno()],
                start_new_session=True,
            )
        threading.Thread(target=self._exit_with_server, daemon=True).start()
        atexit.register(self._stop)

    def connect(self) -> None:
        """Wait until the server responds, and let this process use it. Replaces any login that the user has configured.

        Raises httpx.HTTPError if the server does not respond.
        """
        from prefect.context import refresh_global_settings_context

        self._wait_for_answer(time.monotonic() + STARTUP_S)
        # The environment is changed only for a moment, so that child processes do not inherit the login.
        with changed_environment({_CLIENT_URL: self._url, _CLIENT_LOGIN: f"{_USER}:{self._password}"}):
            refresh_global_settings_context()

    def _wait_for_answer(self, latest: float) -> None:
        """Repeat a request until the server answers. If the server dies, `_exit_with_server` ends this process."""
        import httpx

        while True:
            remaining_s = max(latest - time.monotonic(), _RETRY_S)
            try:
                httpx.get(f"{self._url}/health", timeout=remaining_s, auth=(_USER, self._password)).raise_for_status()
                return
            except httpx.TransportError:  # a connection can be reset while the server starts or dies
                if time.monotonic() > latest:
                    raise
                time.sleep(_RETRY_S)

    def expect_end(self) -> None:
        """Do not report the end of the server any more, because this process ends it."""
        self._stopped = True

    def _stop(self) -> None:
        self.expect_end()
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._process.kill()

    def _exit_with_server(self) -> None:
        """Wait until the server ends. If this was not expected, exit this process at once; its sweep can be continued.

        If this process continued, Prefect would send more requests to the dead server, and would finally wait minutes
        for every event that Prefect could not send.
        """
        code = self._process.wait()
        if not self._stopped:
            if code != _NOT_STARTED:  # the server itself has said why it does not start
                _print_error(f"Prefect's temporary server died (exit code {code}); the same command continues")
            os._exit(ENVIRONMENT_UNUSABLE)


def start() -> TemporaryServer:
    """Start a temporary server. Raises EnvironmentUnusable, at once where this machine cannot reach itself."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()):
            pass
    except OSError as error:
        problem = f"this machine cannot reach 127.0.0.1, which the temporary Prefect server needs: {error.strerror}"
        raise EnvironmentUnusable(problem, remedy="set the interface `lo` up: `ip link set lo up`") from error
    try:
        return TemporaryServer()
    except OSError as error:
        raise EnvironmentUnusable(f"Prefect's temporary server does not start: {error}") from error


def is_surely_needed() -> bool:
    """Return True if no Prefect API is configured. Return False if Prefect's files must be read to see this.

    Prefect itself is not imported. It reads its settings from variables and from these files.
    """
    if any(name.upper().startswith(_API_VARIABLES) for name in os.environ):
        return False
    profiles = Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser() / "profiles.toml"
    variables, project = Path(".env"), Path("pyproject.toml")
    if profiles.exists() or Path("prefect.toml").exists():
        return False
    try:
        if variables.is_file() and "prefect" in variables.read_text(errors="replace").lower():
            return False
        return not project.is_file() or "prefect" not in tomllib.loads(project.read_text()).get("tool", {})
    except (OSError, ValueError):
        return False


def _print_error(problem: str) -> None:
    show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""
    print(f"{show_cursor}qnnsweep: {problem}", file=sys.stderr, flush=True)


def _protect_database() -> None:
    """Let only this user read what the server writes, and the database that an earlier version may have created."""
    from prefect.settings import PREFECT_HOME

    os.umask(0o077)
    for path in PREFECT_HOME.value().glob("prefect.db*"):
        with suppress(FileNotFoundError, PermissionError):  # another server may remove its log, or another user owns it
            path.chmod(0o600)


def _exit_with_parent() -> None:
    """Exit when stdin ends. The parent process writes nothing to it, so stdin ends when the parent process ends."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(0)


def _expire_leases_of_dead_holders() -> None:
    """Make this server end the leases of dead holders. A temporary server does not do so by default; see `leases`."""
    from prefect.server.services.perpetual_services import get_perpetual_services
    from prefect.server.services.repossessor import monitor_expired_leases

    for service in get_perpetual_services():
        if service.function is monitor_expired_leases:
            service.run_in_ephemeral = True


@contextmanager
def _only_one_starts() -> Generator[None]:
    """Wait until no other temporary server of this user starts, because two servers cannot create one database."""
    from prefect.settings import PREFECT_HOME

    PREFECT_HOME.value().mkdir(parents=True, exist_ok=True)
    folder = os.open(PREFECT_HOME.value(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@contextmanager
def _startup_error_printed() -> Generator[None]:
    """Print the reason in one line if uvicorn exits because the application does not start."""
    from prefect.settings import PREFECT_HOME

    log = logging.getLogger("uvicorn.error")
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    log.addHandler(handler)
    try:
        yield
    except SystemExit:
        reasons = [line for message in messages for line in message.splitlines() if _REASON.match(line)]
        reason = reasons[-1] if reasons else "no reason was logged"
        _print_error(f"Prefect's temporary server does not start, PREFECT_HOME={PREFECT_HOME.value()}: {reason}")
        raise
    finally:
        log.removeHandler(handler)


def main() -> None:
    """Serve requests on the listening socket whose descriptor is the only argument."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    gc.set_threshold(100_000)  # what is imported stays, so collections during the imports are vain
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            with _only_one_starts(), _startup_error_printed():
                await super().startup(sockets)

    _protect_database()
    _expire_leases_of_dead_holders()
    application = "prefect.server.api.server:create_app"
    server = Server(uvicorn.Config(application, factory=True, log_level="error", lifespan="on"))
    server.run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
    sys.exit(0 if server.started else 1)


if __name__ == "__main__":
    main()
