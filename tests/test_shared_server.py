"""The Prefect server that all processes of the tests share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from tests.processes import assert_gone, command_of

ROOT = Path(__file__).parents[1]
USE = """
import sys
from pathlib import Path
from tests.flows.cluster import address
from tests.shared_server import shared_server
with shared_server(Path(sys.argv[1])) as client:
    print(address(client), client.post("/deployments/filter", json={}).status_code, flush=True)
    sys.stdin.read()
"""


def use(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", USE, str(folder)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def kill(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()


@pytest.mark.slow
def test_processes_use_one_server_which_ends_with_the_last_of_them_although_it_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    users = [use(folder), use(folder)]
    first, second = (user.stdout.readline().split() for user in users if user.stdout)
    assert first == second
    assert first[1] == "200"
    (server,) = (
        process
        for process in psutil.process_iter()
        if command_of(process.pid).endswith(f"tests.shared_server {folder}")
    )
    running = [server, *server.children(recursive=True)]
    assert any("prefect server start" in command_of(process.pid) for process in running)
    kill(users[0])
    assert httpx.get(f"{first[0]}/health").status_code == 200
    kill(users[1])
    assert_gone(running, within_s=60)
    assert not (folder / "address").exists()
