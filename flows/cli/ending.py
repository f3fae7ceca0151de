"""The end of the process of a command."""

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from qnnsweep.conf.errors import ENVIRONMENT_UNUSABLE

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_NO_MEMORY = b"qnnsweep: no memory was left to begin a thread; raise the limit (ulimit -v) and run again\n"
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
    """Let this process end if a thread has no memory to begin: Python 3.11 and 3.12 wait for its beginning for ever."""
    sys.unraisablehook = _end_without_memory


def _end_without_memory(unraisable: "UnraisableHookArgs") -> None:
    begin = getattr(unraisable.object, "__func__", None)
    if begin is threading.Thread._bootstrap and issubclass(unraisable.exc_type, MemoryError):  # type: ignore[attr-defined]
        os.write(2, _NO_MEMORY)
        os._exit(ENVIRONMENT_UNUSABLE)
    sys.__unraisablehook__(unraisable)
