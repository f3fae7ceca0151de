"""The end of the process of a command."""

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn

from qnnsweep.conf.errors import ENVIRONMENT_UNUSABLE

_NO_MEMORY = b"qnnsweep: no memory was left to begin a thread; raise the limit (ulimit -v) and run again\n"
_BEGIN_S = 20.0
"""A thread that has not begun after this time never will."""
_NOT_WRITTEN = 120
"""The exit code of Python if the output cannot be written at the end."""


def end(code: int) -> NoReturn:
    """End this process as Python does, except that its modules are not freed: that takes half a second after a run."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = _NOT_WRITTEN
            with suppress(OSError):
                stream.close()
    os._exit(code)


def end_without_memory() -> None:
    """Let this process end if a thread has no memory to begin: Python 3.11 and 3.12 wait for its beginning for ever.

    No code of Python can run in such a thread, so the thread that starts it must notice.
    """
    threading.Thread.start = _start


class _Begin(threading.Event):
    """The event that a thread has begun. Whoever waits for it without a limit waits for `_BEGIN_S`."""

    def wait(self, timeout: float | None = None) -> bool:
        has_begun = super().wait(_BEGIN_S if timeout is None else timeout)
        if timeout is None and not has_begun:
            os.write(2, _NO_MEMORY)
            os._exit(ENVIRONMENT_UNUSABLE)
        return has_begun


_START = threading.Thread.start


def _start(self: threading.Thread) -> None:
    begin: threading.Event = self._started  # type: ignore[attr-defined]
    if not begin.is_set():
        self._started = _Begin()  # type: ignore[attr-defined]
    _START(self)
