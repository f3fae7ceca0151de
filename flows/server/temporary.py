"""Prefect's temporary server, in a session of its own. It never outlives the process that started it.

Prefect starts a temporary server if no server is configured. Prefect's own way of starting the server has three
problems: Ctrl-C in the terminal stops the server before its clients; a process that is killed leaves its server
running; and every user of the machine can use the server. The server here accepts only requests with a random
password, which is in the environment of the server and in the settings of the process that started it.
"""

import os
import secrets
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

from prefect.context import refresh_global_settings_context
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_HOME, get_current_settings
from rich.console import Console

from flows.exit_codes import ENVIRONMENT_UNUSABLE
from tasks.environment import changed_environment

_SERVER_ENVIRONMENT = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
_CLIENT_LOGIN, _SERVER_LOGIN = "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"
_PORT_TAKEN = 3
"""The exit code of uvicorn if it cannot start."""


class Server(SubprocessASGIServer):
    """The temporary server for Prefect. Prefect reuses the first instance of the base class, which is this one."""

    _stopped = False
    _login = ""

    def start(self, timeout: int | None = None) -> None:
        """Start the server once, and let this process log in to it. Replaces any login that the user has configured."""
        if not self.running:
            self._login = f"qnnsweep:{secrets.token_urlsafe(32)}"
            _set_login(self._login)
        super().start(timeout)

    def stop(self) -> None:
        self._stopped = True
        super().stop()

    def _run_uvicorn_command(self) -> subprocess.Popen[Any]:
        settings = get_current_settings().to_environment_variables(exclude_unset=True)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "flows.server.temporary", str(self.port)],
            env={**os.environ, **_SERVER_ENVIRONMENT, **settings, _SERVER_LOGIN: self._login},
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        threading.Thread(target=self._exit_with, args=[process], daemon=True).start()
        return process

    def _exit_with(self, process: subprocess.Popen[Any]) -> None:
        """Wait until the server ends. If nothing called `stop`, exit this process at once; its sweep can be continued.

        If this process continued, Prefect would wait minutes for the start of a dead server, would send more requests
        to the server, and would finally wait minutes for every event that Prefect could not send. Do not exit if the
        port was taken, because Prefect then tries again.
        """
        code = process.wait()
        if not self._stopped and code != _PORT_TAKEN:
            console = Console(stderr=True, soft_wrap=True, highlight=False)
            console.show_cursor()
            console.print(f"qnnsweep: Prefect's temporary server died (exit code {code}); the same command continues")
            os._exit(ENVIRONMENT_UNUSABLE)


def _set_login(login: str) -> None:
    """Set the login of Prefect's clients in this process. Its child processes do not inherit the login."""
    with changed_environment({_CLIENT_LOGIN: login}):
        refresh_global_settings_context()


def _protect_database() -> None:
    """Let only this user read what the server writes, and the database that an earlier version may have created."""
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
    import uvicorn

    _protect_database()
    _expire_leases_of_dead_holders()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    uvicorn.run(
        "prefect.server.api.server:create_app",
        factory=True,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_level="error",
        lifespan="on",
    )


if __name__ == "__main__":
    main()
