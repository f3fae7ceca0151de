"""Prefect's own temporary server, in a session of its own and never outliving the process that started it.

Prefect starts one where none is configured. Its own way has the terminal's Ctrl-C stop the server before those who
still talk to it, and a killed process leave it running.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import get_current_settings
from rich.console import Console

from flows.exit_codes import ENVIRONMENT_UNUSABLE

_AS_PREFECT_DOES = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
_PORT_TAKEN = 3
"""How uvicorn ends when it cannot start."""


class Server(SubprocessASGIServer):
    """Once made, the one that Prefect starts when it needs one: it keeps a single instance."""

    _stopped = False

    def stop(self) -> None:
        self._stopped = True
        super().stop()

    def _run_uvicorn_command(self) -> subprocess.Popen[Any]:
        settings = get_current_settings().to_environment_variables(exclude_unset=True)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "flows.server.temporary", str(self.port)],
            env={**os.environ, **_AS_PREFECT_DOES, **settings},
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        threading.Thread(target=self._end_us_with, args=[process], daemon=True).start()
        return process

    def _end_us_with(self, process: subprocess.Popen[Any]) -> None:
        """Wait for its death, and end this process if nobody stopped it: as a kill would, which a sweep survives.

        Prefect would wait minutes for one to start that is dead, would go on asking a server that is not there, and at
        the end wait minutes for each thing untold. One that found its port taken is its own to try again.
        """
        code = process.wait()
        if not self._stopped and code != _PORT_TAKEN:
            console = Console(stderr=True, soft_wrap=True, highlight=False)
            console.show_cursor()
            console.print(f"qnnsweep: Prefect's temporary server died (exit code {code}); the same command continues")
            os._exit(ENVIRONMENT_UNUSABLE)


def _end_with_parent() -> None:
    """Nothing is ever written to stdin: it ends when the process that holds the other side does."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(0)


def _end_leases_of_the_dead() -> None:
    """A temporary server leaves that to others, and here there are none: see `flows.server.leases`."""
    from prefect.server.services.perpetual_services import get_perpetual_services
    from prefect.server.services.repossessor import monitor_expired_leases

    for service in get_perpetual_services():
        if service.function is monitor_expired_leases:
            service.run_in_ephemeral = True


def main() -> None:
    import uvicorn

    _end_leases_of_the_dead()
    threading.Thread(target=_end_with_parent, daemon=True).start()
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
