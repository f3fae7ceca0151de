"""A Python program that runs in a fork of the fork server, with the modules that the server has imported already.

`process_tree.supervise` supervises the program as if it ran in a new process.
"""

import os
import runpy
import sys
import traceback
from typing import Any

from qnnsweep.tasks.process_tree import supervise
from qnnsweep.tasks.toolchain.workers.output import flush_native_output


def serve_program(caller: int, stdout: int, stderr: int) -> None:
    """Supervise the program of the request that the socket `caller` sends. `stdout` and `stderr` get its output.

    All three are descriptors.
    """
    for descriptor, passed in enumerate((caller, stdout, stderr)):
        os.dup2(passed, descriptor)
        os.close(passed)
    os.setsid()
    supervise(_run)


def _run(request: dict[str, Any], failed: int) -> None:
    """Run the request's file, with its arguments and variables, and exit. The file may also replace this process."""
    _interpreter, _option, file, *arguments = request["argv"]
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:] = [file, *arguments]
    sys.orig_argv[:] = request["argv"]
    os.close(failed)
    status = 1
    try:
        runpy.run_path(file, run_name="__main__")
        status = 0
    except SystemExit as end:
        status = _exit_code(end)
    except BaseException:  # noqa: BLE001 - the outermost frame of the program
        traceback.print_exc()
    finally:
        flush_native_output()
        sys.stderr.flush()
        os._exit(status)


def _exit_code(end: SystemExit) -> int:
    """Return the exit code that Python's interpreter would return."""
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)
    return 1
