"""One Prefect server for all processes of the tests. The first process that needs it starts it.

Each process that uses the server holds a shared lock. The server's own process waits for the exclusive lock, gets it
when the last user has ended, however that was, and then ends the server.
"""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.flows.cluster import STARTUP_S, address, client_of, prefect_server, wait_until

ROOT = Path(__file__).parents[1]


@contextmanager
def shared_server(folder: Path) -> Generator[httpx.Client]:
    """Yield a client of the server whose home is below `folder`, which is the same for all processes of the tests."""
    folder.mkdir(exist_ok=True)
    with (folder / "start").open("w") as start, (folder / "users").open("w+") as users:
        fcntl.lockf(start, fcntl.LOCK_EX)  # one process at a time looks whether there is a server
        fcntl.lockf(users, fcntl.LOCK_SH)  # a server that ends has ended after this
        running = folder / "address"
        if not running.exists():
            # A process of its own session, and no child of this one, which may end earlier.
            command = ["setsid", "--fork", sys.executable, "-m", __name__, str(folder)]
            with (folder / "errors").open("wb") as errors:
                subprocess.run(command, cwd=ROOT, stderr=errors, check=True)
            wait_until(running.exists, STARTUP_S, f"there is a Prefect server, see {folder}")
        fcntl.lockf(start, fcntl.LOCK_UN)
        with client_of(running.read_text()) as client:
            yield client


def home(folder: Path) -> Path:
    """Return the PREFECT_HOME of the server."""
    return folder / "home"


def serve(folder: Path) -> None:
    """Run the server until no process uses it."""
    home(folder).mkdir(exist_ok=True)
    # What a shell starts in the background ignores SIGINT, by which the server is ended.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    running, complete = folder / "address", folder / "complete"
    with (folder / "users").open("r+") as users, prefect_server(home(folder), folder / "log") as client:
        complete.write_text(address(client))
        complete.replace(running)
        fcntl.lockf(users, fcntl.LOCK_EX)
        running.unlink()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
