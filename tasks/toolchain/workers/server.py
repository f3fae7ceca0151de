"""The fork server of the workers: its start and its end."""

import atexit
import contextlib
import os
import shutil
from collections.abc import Mapping
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from multiprocessing.util import get_temp_dir

from tasks.environment import changed_environment

_PRELOAD = "tasks.toolchain.workers.preload"
_SOCKET_FOLDER = "QNNSWEEP_SOCKET_FOLDER"
"""The environment variable with the folder of the fork server's socket."""


def start_server(context: ForkServerContext, environment: Mapping[str, str]) -> None:
    """Start the fork server unless it runs already. Not thread-safe: it changes the environment for a moment."""
    # PYTHONSAFEPATH: a folder `tasks` in the user's working directory must not be imported.
    changes = {**environment, "PYTHONSAFEPATH": "1", _SOCKET_FOLDER: get_temp_dir()}
    with changed_environment(changes):
        context.set_forkserver_preload([_PRELOAD])
        forkserver.ensure_running()


def end_with_caller() -> None:
    """Make this process, if it is the fork server, remove the folder of its socket when it ends.

    It ends when its caller and all workers have ended. A caller that is killed cannot remove the folder itself.
    """
    folder = os.environ.pop(_SOCKET_FOLDER, None)
    if folder is not None:
        with contextlib.suppress(PermissionError):  # it leads a session already
            os.setsid()  # a signal to the caller's process group does not end the server, which has to tidy up
        atexit.register(_tidy_up, os.getpid(), folder)


def _tidy_up(server_pid: int, folder: str) -> None:
    if os.getpid() == server_pid:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)  # at once: freeing all modules takes seconds
