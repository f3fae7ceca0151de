"""The fork servers of the workers, one per toolchain: their start and their end."""

import atexit
import contextlib
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, spawn
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from multiprocessing.util import get_temp_dir
from typing import Any

from qnnsweep.tasks.environment import changed_environment

_PRELOAD, _PRELOAD_SMALL = "qnnsweep.tasks.toolchain.preload", "qnnsweep.tasks.toolchain.preload_small"
_SOCKET_FOLDER = "QNNSWEEP_SOCKET_FOLDER"
"""The environment variable with the folder of the fork server's socket."""


class ToolchainContext(ForkServerContext):
    """A context whose processes are forked by the fork server of one toolchain.

    A prepared toolchain has servers of its own, because the dynamic linker reads the environment only once. All
    contexts with equal environments share a server. The default toolchain has the server of Python's own context.
    """

    def __init__(self, environment: Mapping[str, str] | None, *, compiles: bool = True) -> None:
        """`environment`: the variables of a prepared toolchain; None for the default toolchain.

        `compiles`: whether the server imports everything that a compilation needs, or only what a comparison needs.
        """
        super().__init__()
        self._preload = _PRELOAD if compiles else _PRELOAD_SMALL
        with _servers_lock:
            variables = None if environment is None else tuple(sorted(environment.items()))
            self.server = _servers.setdefault((compiles, variables), forkserver.ForkServer())

    @property
    def is_started(self) -> bool:
        """Whether the fork server has been started."""
        return self.server._forkserver_pid is not None

    def start_server(self, modules: Sequence[str]) -> None:
        """Start the fork server in the environment of this process, unless it runs already. See `start_server`."""
        self.server.set_forkserver_preload([self._preload, *modules])
        self.server.ensure_running()

    def start(self, process: BaseProcess) -> None:
        """Start a process that this context created."""
        _selected.server = self.server
        try:
            process.start()
        finally:
            del _selected.server


_DEFAULT_SERVER = forkserver._forkserver  # type: ignore[attr-defined]
_servers: dict[tuple[bool, tuple[tuple[str, str], ...] | None], Any] = {(True, None): _DEFAULT_SERVER}
_servers_lock = threading.Lock()
_start_lock = threading.Lock()
_selected = threading.local()


def _connect_to_new_process(fds: list[int]) -> tuple[int, int]:
    """Ask the fork server that this thread selected for a process. Python would always ask its only server."""
    return getattr(_selected, "server", _DEFAULT_SERVER).connect_to_new_process(fds)


forkserver.connect_to_new_process = _connect_to_new_process
_preparation_data = spawn.get_preparation_data


def _preparation_data_without_main(name: str) -> dict[str, Any]:
    """Return what a new process needs. No call needs the caller's main module, whose import would take a while."""
    data = _preparation_data(name)
    if hasattr(_selected, "server"):
        for key in ("init_main_from_name", "init_main_from_path"):
            data.pop(key, None)
    return data


spawn.get_preparation_data = _preparation_data_without_main


def start_server(context: ToolchainContext, environment: Mapping[str, str], modules: Sequence[str]) -> None:
    """Start the context's fork server unless it runs already. For a moment, the environment of this process changes.

    `modules`: what the server imports after the modules of the toolchain.
    """
    # PYTHONSAFEPATH: a folder `tasks` in the user's working directory must not be imported.
    changes = {**environment, "PYTHONSAFEPATH": "1", _SOCKET_FOLDER: get_temp_dir()}
    with _start_lock, changed_environment(changes):
        context.start_server(modules)


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
