"""The temporary Prefect server serves only the process that started it, although every user can reach its port."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

import httpx
import psutil

from tests.program import Program

NOBODY = 65534
START = """
import os, sys
from flows.server.settings import configure_prefect
configure_prefect()
from flows.server import connect
connect.ensure()
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL
with get_client(sync_client=True) as client:
    print(PREFECT_API_URL.value(), len(client.read_flows()), flush=True)
print(PREFECT_API_AUTH_STRING.value(), os.environ.get("PREFECT_API_AUTH_STRING"), flush=True)
print("PREFECT_API_URL" in os.environ, "prefect.server" in sys.modules, flush=True)
input()
"""


def status_of(url: str, login: str | None = None) -> int:
    headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}
    return httpx.post(f"{url}/flow_runs/filter", json={}, headers=headers, timeout=60).status_code


def status_for_another_user(url: str) -> str:
    request = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-X", "POST", f"{url}/flow_runs/filter"]
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--", *request]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_temporary_server_refuses_requests_without_the_login_of_its_client(program: Program) -> None:
    home = Path(program.environment["PREFECT_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    (home / "prefect.db").touch(mode=0o644)
    configured = "admin:the login for another server"
    process = subprocess.Popen(
        [sys.executable, "-c", START],
        cwd=program.folder,
        env=program.environment | {"PREFECT_API_AUTH_STRING": configured, "PREFECT_SERVER_API_AUTH_STRING": configured},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url, flows = process.stdout.readline().split()
        login, _, inherited = process.stdout.readline().rstrip().partition(" ")
        assert (int(flows) >= 0, inherited) == (True, configured)
        # The URL is not inherited, and the client does not import the code of the server, which takes seconds.
        assert process.stdout.readline().split() == ["False", "False"]
        assert (status_of(url), status_of(url, configured), status_of(url, "qnnsweep:guess")) == (401, 401, 401)
        assert status_for_another_user(url) == "401"
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
