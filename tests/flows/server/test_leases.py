"""A device is one holder's at a time in all processes that share Prefect's database, and free when its holder dies."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.flows.conftest import Program

pytestmark = pytest.mark.timeout(900)

# Each process has a temporary Prefect server of its own, as every `qnnsweep run` does.
HOLD = """
import sys
from flows.server.settings import configure_prefect
configure_prefect()
from flows.server import leases, connect
from tasks.devices.farm import DeviceBusy
connect.ensure()
for line in sys.stdin:
    verb, device = line.split()
    try:
        held = leases.exclusive(device)
        held.__enter__()
    except DeviceBusy:
        print("busy", flush=True)
        continue
    if verb == "try":
        held.__exit__(None, None, None)
    print("held", flush=True)
print("ended", flush=True)
"""


class Holder:
    def __init__(self, program: Program) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLD],
            cwd=program.folder,
            env=program.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, verb: str, device: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{verb} {device}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def test_another_process_finds_it_busy_until_the_holder_lets_go_or_dies(program: Program) -> None:
    one, other = Holder(program), Holder(program)
    try:
        assert one.ask("try", "phone") == "held"  # let go at once
        assert other.ask("try", "phone") == "held"
        assert one.ask("hold", "phone") == "held"
        assert [other.ask("try", device) for device in ("phone", "tablet", "phone")] == ["busy", "held", "busy"]
        one.kill()
        died = time.monotonic()
        assert other.ask("try", "phone") == "busy"  # nobody can know yet
        while other.ask("try", "phone") == "busy":
            assert time.monotonic() - died < 240
            time.sleep(2)
        assert time.monotonic() - died > 20
    finally:
        one.kill()
        other.kill()
