"""A device has one holder at a time among all processes that share Prefect's database, and is free when it dies."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.program import Program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# Each process has a temporary Prefect server of its own, as every `qnnsweep run` does. Its leases have the shortest
# duration that Prefect allows, so that the test waits no longer than it must.
HOLD = """
import sys
from qnnsweep.flows.server.settings import configure_prefect
configure_prefect()
from qnnsweep.flows.server import leases, connect
from qnnsweep.tasks.devices.farm import DeviceBusy
leases.LEASE_S = 60.0
connect.ensure()
for line in sys.stdin:
    verb, device = line.split()
    try:
        lease = leases.exclusive(device)
        lease.__enter__()
    except DeviceBusy:
        print("busy", flush=True)
        continue
    if verb == "try":
        lease.__exit__(None, None, None)
    print("held", flush=True)
print("ended", flush=True)
"""


class Holder:
    """A process that holds leases."""

    def __init__(self, program: Program) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLD],
            cwd=program.folder,
            env=program.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def send(self, verb: str, device: str) -> str:
        """Send a line (`try` releases the lease again, `hold` does not) and return the answer: `held` or `busy`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{verb} {device}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise AssertionError(f"the process has ended: {self.kill()}") from None
        return self._process.stdout.readline().strip()

    def kill(self) -> str:
        """Kill the process and return what it has written to stderr."""
        self._process.kill()
        return self._process.communicate()[1]


def test_a_leased_device_is_busy_for_other_processes_until_its_holder_releases_it_or_dies(program: Program) -> None:
    first, second = Holder(program), Holder(program)
    try:
        assert first.send("try", "phone") == "held"
        assert second.send("try", "phone") == "held"
        assert first.send("hold", "phone") == "held"
        assert [second.send("try", device) for device in ("phone", "tablet", "phone")] == ["busy", "held", "busy"]
        first.kill()
        died = time.monotonic()
        assert second.send("try", "phone") == "busy"  # the lease has not expired
        while second.send("try", "phone") == "busy":
            assert time.monotonic() - died < 240
            time.sleep(0.5)
    finally:
        first.kill()
        complaints = second.kill()
    # Prefect would write an error whenever the device is busy.
    assert "ConcurrencySlot" not in complaints
