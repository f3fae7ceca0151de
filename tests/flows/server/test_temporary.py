"""The temporary Prefect server of a process: its login, its start and its end.

It serves only the process that started it, although every user can reach its port.
"""

from __future__ import annotations

import base64
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.flows.cluster import wait_until
from tests.program import Program, new_program

NOBODY = 65534
START = """
import os, sys
from qnnsweep.flows.server.settings import configure_prefect
configure_prefect()
from qnnsweep.flows.server import connect
connect.ensure()
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL
with get_client(sync_client=True) as client:
    print(PREFECT_API_URL.value(), len(client.read_flows()), flush=True)
print(PREFECT_API_AUTH_STRING.value(), os.environ.get("PREFECT_API_AUTH_STRING"), flush=True)
print("PREFECT_API_URL" in os.environ, "prefect.server" in sys.modules, flush=True)
input()
"""


def start(program: Program, **environment: str) -> subprocess.Popen[str]:
    """Start a process that uses a temporary server, prints what it sees of the server, and waits for a line."""
    return subprocess.Popen(
        [sys.executable, "-c", START],
        cwd=program.folder,
        env=program.environment | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def status_of(url: str, login: str | None = None) -> int:
    headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}
    return httpx.post(f"{url}/flow_runs/filter", json={}, headers=headers, timeout=60).status_code


def status_for_another_program(url: str) -> str:
    """Return the status of a request without a login, if possible of another user."""
    request = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-X", "POST", f"{url}/flow_runs/filter"]
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
    command = [*as_nobody, *request] if os.geteuid() == 0 else request
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_temporary_server_refuses_requests_without_the_login_of_its_client(program: Program) -> None:
    home = Path(program.environment["PREFECT_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    (home / "prefect.db").touch(mode=0o644)
    configured = "admin:the login for another server"
    process = start(program, PREFECT_API_AUTH_STRING=configured, PREFECT_SERVER_API_AUTH_STRING=configured)
    try:
        assert process.stdout is not None
        url, flows = process.stdout.readline().split()
        login, _, inherited = process.stdout.readline().rstrip().partition(" ")
        assert (int(flows) >= 0, inherited) == (True, configured)
        # The URL is not inherited, and the client does not import the code of the server, which takes seconds.
        assert process.stdout.readline().split() == ["False", "False"]
        assert (status_of(url), status_of(url, configured), status_of(url, "qnnsweep:guess")) == (401, 401, 401)
        assert status_for_another_program(url) == "401"
        assert status_of(url, login) == 200
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        assert [member for member in family if any(login in word for word in member.cmdline())] == []
        listening = [c for member in family for c in member.net_connections() if c.status == psutil.CONN_LISTEN]
        assert {connection.laddr.ip for connection in listening} == {"127.0.0.1"}
        written = [path for path in home.rglob("*") if path.is_file() and path.name.startswith("prefect.db")]
        assert {path.name: oct(path.stat().st_mode & 0o777) for path in written if path.stat().st_mode & 0o077} == {}
        assert (home / "prefect.db").stat().st_size > 0
    finally:
        process.communicate("\n", timeout=60)


def test_a_server_waits_until_no_other_server_creates_the_database(tmp_path_factory: pytest.TempPathFactory) -> None:
    program = new_program(tmp_path_factory)
    home = Path(program.environment["PREFECT_HOME"])
    home.mkdir()
    folder = os.open(home, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)  # as another server that creates the database
    process = start(program)
    try:
        wait_until(lambda: waits_for_lock(psutil.Process(process.pid).children()), 180, "the server waits for the lock")
        assert not (home / "prefect.db").exists()
    finally:
        os.close(folder)
    out, err = process.communicate("\n", timeout=180)
    assert (process.returncode, err) == (0, "")
    assert out.startswith("http://127.0.0.1:")
    assert (home / "prefect.db").stat().st_size > 0


def waits_for_lock(processes: list[psutil.Process]) -> bool:
    waiting = [line.split() for line in Path("/proc/locks").read_text().splitlines() if " -> FLOCK " in line]
    return {int(words[5]) for words in waiting} & {process.pid for process in processes} != set()


def test_a_server_that_cannot_start_is_one_line_with_the_reason(tmp_path_factory: pytest.TempPathFactory) -> None:
    """When such a server ends, the connection of its client is reset. This is not reported in place of the reason."""
    program = new_program(tmp_path_factory)
    home = Path(program.environment["PREFECT_HOME"])
    home.mkdir()
    (home / "prefect.db").write_text("these words are no database")
    process = start(program)
    out, err = process.communicate("\n", timeout=180)
    assert (process.returncode, out) == (3, "")
    assert err == (
        f"qnnsweep: Prefect's temporary server does not start, PREFECT_HOME={home}: "
        "sqlalchemy.exc.DatabaseError: (sqlite3.DatabaseError) file is not a database\n"
    )


def test_a_machine_that_cannot_reach_itself_is_one_line_at_once(program: Program, tmp_path: Path) -> None:
    started = time.monotonic()
    line = "import sys; from qnnsweep.flows.cli.main import main; sys.argv = ['qnnsweep', 'run', *sys.argv[1:]]; main()"
    ran = subprocess.run(
        ["unshare", "--map-current-user", "--net", sys.executable, "-c", line, f"artifacts={tmp_path}"],
        capture_output=True, text=True, check=False, env=program.environment, cwd=program.folder,
    )  # fmt: skip
    problem = "this machine cannot reach 127.0.0.1, which the temporary Prefect server needs: Network is unreachable"
    assert ran.stderr.splitlines()[-1] == f"qnnsweep: {problem}; set the interface `lo` up: `ip link set lo up`"
    assert (ran.returncode, time.monotonic() - started < 60) == (3, True)
