"""The command line as the child of a Python process. It ends, as with Ctrl-C, when its parent ends or closes its stdin.

A kernel that is restarted, or a process that is killed, leaves no sweep behind.
"""

import os
import select
import signal
import sys
import threading

from qnnsweep.flows.cli.main import main

_LOOK_S = 1.0


def _end_with(parent: int) -> None:
    """Send this process SIGINT when the process `parent` has ended, or has closed the stdin of this process."""
    while os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin.fileno()], [], [], _LOOK_S)
        if readable and not os.read(sys.stdin.fileno(), 1):
            break
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a parent that ignores the signal makes its children do so
    threading.Thread(target=_end_with, args=(int(sys.argv.pop(1)),), daemon=True).start()
    main()
