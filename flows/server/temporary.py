"""Prefect's temporary server, in a session of its own. It never outlives the process that started it.

A run needs a server, and starts a temporary server if the user has configured none. Prefect would also start one, but
Prefect's own way has four problems: Ctrl-C in the terminal stops the server before its clients; a process that is
killed leaves its server running; every user of the machine can use the server; and the client imports the code of the
server, which takes seconds. The server here accepts only requests with a random password, which is in the environment
of the server and in the settings of the process that started it.
"""

import atexit
import os
import secrets
import socket
import subprocess
import sys
import threading
from contextlib import suppress

from flows.exit_codes import ENVIRONMENT_UNUSABLE
from tasks.environment import changed_environment

STARTUP_S = 120.0
"""The longest start of the server. It takes up to half a minute on a small machine."""
_END_S = 5.0
_SERVER_ENVIRONMENT = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
_SERVER_LOGIN = "PREFECT_SERVER_API_AUTH_STRING"
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
                [sys.executable, "-P", "-m", "flows.server.temporary", str(listening.fileno())],
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
        import httpx
        from prefect.context import refresh_global_settings_context

        httpx.get(f"{self._url}/health", timeout=STARTUP_S, auth=(_USER, self._password)).raise_for_status()
        # The environment is changed only for a moment, so that child processes do not inherit the login.
        with changed_environment({_CLIENT_URL: self._url, _CLIENT_LOGIN: f"{_USER}:{self._password}"}):
            refresh_global_settings_context()

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
            problem = f"Prefect's temporary server died (exit code {code}); the same command continues"
            show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""
            print(f"{show_cursor}qnnsweep: {problem}", file=sys.stderr, flush=True)
            os._exit(ENVIRONMENT_UNUSABLE)


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


def main() -> None:
    """Serve requests on the listening socket whose descriptor is the only argument."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    import uvicorn

    _protect_database()
    _expire_leases_of_dead_holders()
    application = "prefect.server.api.server:create_app"
    server = uvicorn.Server(uvicorn.Config(application, factory=True, log_level="error", lifespan="on"))
    server.run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
    sys.exit(0 if server.started else 1)


if __name__ == "__main__":
    main()
