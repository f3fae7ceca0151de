"""Python programs of the local device that run in a fork of the fork server, compared with those of a new process."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qnnsweep.tasks.devices.local import PYTHON, LocalTransport
from qnnsweep.tasks.devices.transport import CommandResult, RunRequest
from qnnsweep.tasks.errors import DeadlinePassed
from qnnsweep.tasks.toolchain.backends.qnn.sdk import find_sdk
from tests.processes import assert_dead, has_ended
from tests.toolchain.workers.test_caller import CALLER, SOON_S, kill_a_caller, kill_process

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain

SURROUNDINGS = """
import json, os, sys
print(json.dumps([__name__, sys.argv, dict(os.environ), os.getcwd(), sys.stdin.read(), os.getsid(0) == os.getpid()]))
print("an error", file=sys.stderr)
"""
ENDS = {
    "normally": ("", 0),
    "exit without a code": ("import sys; sys.exit()", 0),
    "exit code": ("import sys; sys.exit(3)", 3),
    "exit code of more than a byte": ("import sys; sys.exit(259)", 3),
    "exit with a text": ("import sys; sys.exit('no model')", 1),
    "exception": ("raise ValueError('wrong')", 1),
    "abort": ("import os; os.abort()", -signal.SIGABRT),
    "another program": ("import os; os.execvp('sh', ['sh', '-c', 'echo $0; exit 4'])", 4),
    "output without an end of line": ("import ctypes, os; ctypes.CDLL(None).printf(b'half a line')", 0),
}
HANG = """
import os, sys, time
child = os.fork()
if child == 0:
    os.setsid()
    time.sleep(600)
with open(sys.argv[1], "w") as file:
    file.write(f"{os.getpid()} {child}")
os.rename(sys.argv[1], sys.argv[2])
print("hangs", flush=True)
time.sleep(600)
"""
DEVICE = CALLER.replace(
    'workers.call("lower", getattr(faulty_calls, name), argument)',
    f"""from qnnsweep.tasks.devices.local import PYTHON, LocalTransport
    from qnnsweep.tasks.devices.transport import RunRequest
    program = Path(root).parent / "program.py"
    program.write_text({HANG!r})
    argv = [*PYTHON, str(program), argument + ".partial", argument]
    LocalTransport(workers.program_starter(sdk.environment({{}}))).run(RunRequest(argv, deadline_s=300))""",
)


@pytest.fixture
def forking(resources: Resources) -> LocalTransport:
    environment = find_sdk(os.environ).environment(os.environ)
    return LocalTransport(resources.workers.program_starter(environment))


def run(
    transport: LocalTransport, folder: Path, source: str, *arguments: str, deadline_s: float = 120
) -> CommandResult:
    (folder / "program.py").write_text(source)
    variables = {"QNN_SDK_ROOT": "/a folder", "EMPTY": ""}
    argv = [*PYTHON, str(folder / "program.py"), *arguments]
    ran = transport.run(RunRequest(argv, deadline_s=deadline_s, folder=str(folder), environment=variables))
    assert ran.seconds > 0
    return replace(ran, seconds=0)


def test_a_forked_program_has_the_surroundings_of_a_program_in_a_new_process(
    forking: LocalTransport, tmp_path: Path
) -> None:
    forked, new = (run(device, tmp_path, SURROUNDINGS, "an argument", "") for device in (forking, LocalTransport()))
    in_fork, in_new = json.loads(forked.stdout), json.loads(new.stdout)
    in_new[2].pop("LC_CTYPE", None)  # a new interpreter sets it if LANG is not set
    assert in_fork == in_new
    assert in_fork[1] == [str(tmp_path / "program.py"), "an argument", ""]
    assert in_fork[-1] is True
    assert replace(forked, stdout=b"") == replace(new, stdout=b"")
    assert forked.stderr == b"an error\n"


@pytest.mark.parametrize(("source", "exit_code"), ENDS.values(), ids=ENDS)
def test_a_forked_program_ends_like_a_program_in_a_new_process(
    forking: LocalTransport, tmp_path: Path, source: str, exit_code: int
) -> None:
    forked, new = (run(device, tmp_path, source) for device in (forking, LocalTransport()))
    # The traceback of a fork has more frames.
    assert forked.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]
    assert replace(forked, stderr=b"") == replace(new, stderr=b"")
    assert forked.exit_code == exit_code


def test_only_a_forked_program_has_pytorch_from_its_start(forking: LocalTransport, tmp_path: Path) -> None:
    source = "import sys; print('torch' in sys.modules)"
    printed = [run(device, tmp_path, source).stdout for device in (forking, LocalTransport())]
    assert printed == [b"True\n", b"False\n"]


def test_no_program_is_forked_from_a_server_with_other_variables(resources: Resources) -> None:
    assert resources.workers.program_starter({"QNN_SDK_ROOT": "/another"}) is None


def test_no_forked_program_sees_what_another_one_changed(forking: LocalTransport, tmp_path: Path) -> None:
    source = "import sys, os, torch; print(hasattr(torch, 'changed'), os.getppid() > 1); torch.changed = True"
    assert [run(forking, tmp_path, source).stdout for _ in range(2)] == [b"False True\n"] * 2


@pytest.mark.timeout(120)
def test_a_forked_program_and_what_it_started_are_killed_at_the_deadline(
    forking: LocalTransport, tmp_path: Path
) -> None:
    with pytest.raises(DeadlinePassed, match="deadline of 3 s") as late:
        run(forking, tmp_path, HANG, str(tmp_path / "partial"), str(tmp_path / "pids"), deadline_s=3)
    assert late.value.output == b"hangs\n"
    for pid in (tmp_path / "pids").read_text().split():
        assert_dead(int(pid), within_s=SOON_S)


def test_a_daemon_of_a_forked_program_is_killed_when_the_program_ends(forking: LocalTransport, tmp_path: Path) -> None:
    source = HANG.replace('print("hangs", flush=True)\ntime.sleep(600)', "sys.exit(7)")
    assert run(forking, tmp_path, source, str(tmp_path / "partial"), str(tmp_path / "pids")).exit_code == 7
    assert [has_ended(int(pid)) for pid in (tmp_path / "pids").read_text().split()] == [True, True]


def test_a_forked_program_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    kill_a_caller(DEVICE, tmp_path, kill_process)


def test_a_program_runs_in_a_new_process_if_the_fork_server_was_killed(tmp_path: Path) -> None:
    def killed(*_: object) -> None:
        raise EOFError  # what the start of a process raises if the fork server dies meanwhile

    assert run(LocalTransport(killed), tmp_path, "print('alive')").stdout == b"alive\n"
