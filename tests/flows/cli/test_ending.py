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


WITHOUT_MEMORY = """
import os, resource, threading
from qnnsweep.flows.cli import ending
ending._BEGIN_S = 2.0
ending.end_without_memory()
# Just enough for a thread and its stack, and not enough for its first call.
SPARES = range((8 << 20) - (64 << 10), (8 << 20) + (640 << 10), 4 << 10)
codes = []
for spare in (*range(0, 24 << 20, 1 << 18), *SPARES):
    if (child := os.fork()) == 0:
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + spare,) * 2)
        try:
            threading.Thread(target=bytearray, args=(1,)).start()
        except (RuntimeError, MemoryError):
            os._exit(1)
        os._exit(0)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(*sorted(set(codes)))
"""
ONE_THREAD = """
import threading
from qnnsweep.flows.cli import ending
ending._BEGIN_S = 1.0
ending.end_without_memory()
class Starved(threading.Thread):
    def _bootstrap(self):
        pass
quick = threading.Thread(target=print, args=("begun",))
quick.start()
quick.join()
try:
    quick.start()
except RuntimeError as error:
    print(error, flush=True)
Starved().start()
"""


@pytest.mark.timeout(120)
def test_a_process_that_has_hardly_any_memory_ends(program: Program) -> None:
    ran = program.python(WITHOUT_MEMORY)
    assert set(ran.stdout.split()) <= {"0", "1", "3"}
    assert {"0", "1"} <= set(ran.stdout.split())


@pytest.mark.timeout(60)
def test_a_thread_without_memory_to_begin_ends_the_process_with_what_the_machine_lacks(program: Program) -> None:
    ran = program.python(ONE_THREAD)
    assert (ran.returncode, ran.stdout) == (3, "begun\nthreads can only be started once\n")
    assert ran.stderr == ("qnnsweep: no memory was left to begin a thread; raise the limit (ulimit -v) and run again\n")
