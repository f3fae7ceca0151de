"""A call in a script of its own: what is left when the script is killed, and what the script's folder may contain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from qnnsweep.tasks.storage.store import Store
from tests.processes import eventually, has_ended

pytestmark = pytest.mark.toolchain
SOON_S = 30.0
"""A deadline, much shorter than the ten minutes that whatever hangs would go on."""
CALLERS_PATH = (Path(__file__).parents[1], Path(__file__).parents[3] / "src")
"""What a caller can import: `faulty_calls`, and this project instead of an installed one."""

CALLER = """
import os
import sys
from pathlib import Path
import faulty_calls
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.workers.pool import WorkerPool
from qnnsweep.tasks.toolchain.workers.scheduler import Scheduler
from qnnsweep.tasks.toolchain.workers.supervisor import Supervisor
from qnnsweep.tasks.toolchain.backends.qnn.sdk import find_sdk, identity

if __name__ == "__main__":
    root, name, argument = sys.argv[1:]
    store = Store(Path(root))
    sdk = find_sdk(os.environ)
    limits = {"scheduler": Scheduler(parallel=1, memory_bytes=2**36), "deadline_s": 600, "memory_bytes": 2**33}
    supervisor = Supervisor(environment=sdk.environment({}), store=store, **limits)
    workers = WorkerPool(identity(sdk), supervisor)
    workers.call("lower", getattr(faulty_calls, name), argument)
"""


def kill_a_caller(source: str, tmp_path: Path, kill: Callable[[int], None]) -> int:
    """Kill a script whose call hangs: nothing of it may live on. How many scratch folders it leaves to be swept."""
    pids = tmp_path / "pids"
    script = tmp_path / "caller.py"
    script.write_text(source)
    # Not below `tmp_path`, whose path may be too long for a socket.
    with tempfile.TemporaryDirectory() as temporary, (tmp_path / "said").open("wb") as output:
        caller = subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "artifacts"), "hang_holding_the_interpreter", str(pids)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, CALLERS_PATH)), "TMPDIR": temporary},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            assert eventually(pids.exists, 120), (tmp_path / "said").read_text()
            family = [process.pid for process in psutil.Process(caller.pid).children(recursive=True)]
        finally:
            kill(caller.pid)
            caller.wait()
        assert {int(pid) for pid in pids.read_text().split()} < set(family)
        assert eventually(lambda: all(map(has_ended, family)), SOON_S)
        assert list(Path(temporary).glob("pymp-*")) == []
    return Store(tmp_path / "artifacts").remove_stale_temporaries()


def kill_process(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def terminate_group(leader: int) -> None:
    """Do what `timeout` and a closed terminal do."""
    os.killpg(leader, signal.SIGTERM)


def test_a_killed_caller_leaves_neither_a_process_nor_the_folder_of_a_socket_behind(tmp_path: Path) -> None:
    assert kill_a_caller(CALLER, tmp_path, terminate_group) == 1


def test_modules_where_the_user_stands_are_left_alone(tmp_path: Path) -> None:
    for name in ("qnnsweep", "torch", "yaml"):
        (tmp_path / "here" / name).mkdir(parents=True)
        (tmp_path / "here" / name / "__init__.py").write_text(f"raise SystemExit('the user's {name} was imported')")
    script = tmp_path / "caller.py"
    script.write_text(CALLER)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "artifacts"), "give", "anything"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        cwd=tmp_path / "here",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
