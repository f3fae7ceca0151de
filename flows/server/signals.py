"""The handling of SIGTERM while Prefect runs tasks."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def die_on_sigterm() -> Generator[None]:
    """Let SIGTERM kill the process at once. Prefect's handler would first finish every submitted task.

    This kill is safe: the sweep can be continued afterwards, as after `kill -9`. In any thread except the main thread,
    this function does nothing, because Python allows only the main thread to change signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
