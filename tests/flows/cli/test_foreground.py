"""Ctrl-C while a sweep runs on this machine."""

from __future__ import annotations

from tests.program import Program

INTERRUPTED = "qnnsweep: interrupted; run the same command again to continue"
# With many child processes, some time passes between the end of the first child and the end of the last.
FLOW = """
import os, signal, sys, time
from qnnsweep.flows.server.settings import configure_prefect
configure_prefect()
from qnnsweep.flows.cli.foreground import with_progress
def flow(_):
    for _ in range(1000):
        os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    sys.setswitchinterval(0.0001)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
with_progress([], flow)
"""


def test_ctrl_c_with_a_temporary_server_prints_a_single_line(program: Program) -> None:
    ran = program.python(FLOW)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", f"\n{INTERRUPTED}\n")
