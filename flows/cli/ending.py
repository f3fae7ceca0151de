"""The end of the process of a command."""

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn

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
