"""The end of a command's process: everything that Python does at its end happens, in Python's order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.program import Program

LINES = """
import atexit, sys, threading, time
from qnnsweep.flows.cli.ending import end
atexit.register(print, "exit function")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
print("errors", file=sys.stderr, end="")
end({code})
"""


@pytest.mark.parametrize("code", [0, 130])
def test_threads_and_exit_functions_end_before_the_process_and_all_output_is_written(
    program: Program, code: int
) -> None:
    ran = program.python(LINES.format(code=code))
    assert (ran.returncode, ran.stdout, ran.stderr) == (code, "thread\nexit function\n", "errors")


def test_output_that_cannot_be_written_is_an_error_as_in_python(program: Program, tmp_path: Path) -> None:
    line = "python -c 'from qnnsweep.flows.cli.ending import end; print(1); end(0)' > /dev/full; echo $?"
    assert program.shell(line).stdout == "120\n"
