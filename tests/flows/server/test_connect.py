"""A Prefect server is used to serve sweeps only if it needs a login, and it refuses the requests of other web pages."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests.flows.cluster import PATIENCE_S, address, client_environment, prefect_server
from tests.program import Program, new_program

FOREIGN = {"Origin": "http://evil.example", "Referer": "http://evil.example/"}
PROTECT = (
    "start the server with PREFECT_SERVER_API_AUTH_STRING=USER:PASSWORD, PREFECT_SERVER_CSRF_PROTECTION_ENABLED=true "
    "and PREFECT_SERVER_CORS_ALLOWED_ORIGINS= (empty), and set PREFECT_API_AUTH_STRING=USER:PASSWORD here"
)


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server with Prefect's defaults: it needs no login."""
    folder = tmp_path_factory.mktemp("open")
    with prefect_server(folder, folder / "log", protected=False) as client:
        yield client


@pytest.fixture(scope="module")
def open_program(tmp_path_factory: pytest.TempPathFactory, open_server: httpx.Client) -> Program:
    program = new_program(tmp_path_factory)
    return replace(program, environment=program.environment | {"PREFECT_API_URL": address(open_server)})


def doctor_line(program: Program, artifacts: Path, **environment: str) -> dict[str, object]:
    ran = program.run("doctor", "--json", f"--artifacts={artifacts}", **environment)
    (check,) = [check for check in json.loads(ran.stdout)["checks"] if check["what"] == "Prefect server"]
    return check


def test_heartbeats_are_sent_only_if_the_user_has_set_their_interval(program: Program) -> None:
    line = (
        "python -c 'from qnnsweep.flows.server import connect\n"
        "from prefect.settings import get_current_settings as now\n"
        "with connect.without_heartbeats(): print(now().flows.heartbeat_frequency)'"
    )
    variables = ("", "PREFECT_FLOWS_HEARTBEAT_FREQUENCY=60 ", "PREFECT_RUNNER_HEARTBEAT_FREQUENCY=90 ")
    assert [program.shell(variable + line).stdout for variable in variables] == ["None\n", "60\n", "90\n"]


def test_the_two_requests_of_a_foreign_page_are_refused(prefect_api: httpx.Client) -> None:
    """The page first lists the deployments, then starts a run of one of them whose overrides name any function."""
    url, deployment = address(prefect_api), "00000000-0000-0000-0000-000000000000"
    overrides = ["model=digits_cnn", "model.factory=subprocess:getoutput", "+model.arguments.cmd=id"]
    run = {"state": {"type": "SCHEDULED"}, "parameters": {"overrides": overrides, "config_dirs": []}}
    requests = (("deployments/filter", {}), (f"deployments/{deployment}/create_flow_run", run))
    for path, body in requests:
        preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
        asked = httpx.options(f"{url}/{path}", headers=FOREIGN | preflight, timeout=PATIENCE_S)
        assert (asked.status_code, asked.headers.get("access-control-allow-origin")) == (400, None)
        for login in (None, prefect_api.auth):
            answer = httpx.post(f"{url}/{path}", json=body, headers=FOREIGN, auth=login, timeout=PATIENCE_S)
            assert (answer.status_code, answer.json()) == (403, {"detail": "Missing CSRF token."})
            assert "access-control-allow-origin" not in answer.headers
    token = httpx.get(
        f"{url}/csrf-token?client=00000000-0000-0000-0000-000000000000", headers=FOREIGN, timeout=PATIENCE_S
    )
    assert (token.status_code, "access-control-allow-origin" in token.headers) == (401, False)
    assert prefect_api.post("/deployments/filter", json={}).status_code == 200


@pytest.mark.parametrize("command", [("serve",), ("run", "--pool=qnnsweep")], ids=" ".join)
def test_a_server_without_a_login_is_refused_and_nothing_starts(
    open_program: Program, open_server: httpx.Client, command: tuple[str, ...], tmp_path: Path
) -> None:
    ran = open_program.run(*command, "experiment=nightly", f"artifacts={tmp_path}")
    assert ran.returncode == 3
    assert ran.stderr == (
        f"qnnsweep: PREFECT_API_URL={address(open_server)}: the server needs no login, so everybody who can reach it "
        f"can run commands here; {PROTECT}; or set QNNSWEEP_ACCEPT_OPEN_SERVER=1 to accept this\n"
    )
    assert open_server.post("/deployments/filter", json={}).json() == []


def test_a_server_without_a_login_can_be_accepted(open_program: Program) -> None:
    lines = """if True:
        from qnnsweep.flows.server.settings import configure_prefect
        configure_prefect()
        from qnnsweep.flows.cli import serve
        serve.ensure_server()
        """
    accepting = replace(open_program, environment=open_program.environment | {"QNNSWEEP_ACCEPT_OPEN_SERVER": "1"})
    assert [ran.returncode for ran in (open_program.python(lines), accepting.python(lines))] == [1, 0]


def test_a_wrong_login_is_refused(served_program: Program, prefect_api: httpx.Client, tmp_path: Path) -> None:
    ran = served_program.run("run", f"artifacts={tmp_path}", PREFECT_API_AUTH_STRING="admin:guess")
    assert ran.returncode == 3
    assert ran.stderr.splitlines()[-1] == (
        f"qnnsweep: PREFECT_API_URL={address(prefect_api)}: the server refuses the login; set PREFECT_API_AUTH_STRING "
        "to the value of the server's PREFECT_SERVER_API_AUTH_STRING"
    )


@pytest.mark.parametrize("is_gone", [False, True], ids=["503", "disconnected"])
def test_a_server_that_fails_after_its_first_answers_is_one_error(
    open_program: Program, is_gone: bool, tmp_path: Path
) -> None:
    answers = {"/api/health": (200, b"true"), "/api/admin/version": (200, b'"3.8.8"'), "/api/csrf-token": (404, b"{}")}

    class Overloaded(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            path = self.path.partition("?")[0]
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if path not in answers and is_gone:
                return
            status, body = answers.get(path, (503, b"{}"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _answer  # noqa: N815 - http.server's names

    with ThreadingHTTPServer(("127.0.0.1", 0), Overloaded) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}/api"
        command = ("run", "model=digits_cnn", "scheme=8a8w", "soc=SM8650", f"artifacts={tmp_path}")
        ran = open_program.run(*command, PREFECT_API_URL=url, PREFECT_CLIENT_MAX_RETRIES="0")
        server.shutdown()
    busy = f"Server error '503 Service Unavailable' for url '{url}/flows/'"
    problem = "Server disconnected without sending a response." if is_gone else busy
    assert ran.returncode == 3
    assert ran.stderr.splitlines()[-1] == (
        f"qnnsweep: PREFECT_API_URL={url}: {problem}; when the server answers again, run the same command again to "
        "continue"
    )


def test_doctor_checks_the_login_of_the_server(
    open_program: Program, served_program: Program, prefect_api: httpx.Client, tmp_path: Path
) -> None:
    url = client_environment(prefect_api)["PREFECT_API_URL"]
    protected = doctor_line(served_program, tmp_path)
    assert (protected["ok"], protected["found"]) == (True, f"{url}, with a login")
    wrong = doctor_line(served_program, tmp_path, PREFECT_API_AUTH_STRING="admin:guess")
    assert (wrong["ok"], wrong["needed"], wrong["found"]) == (
        False, True, f"PREFECT_API_URL={url}: the server refuses the login",
    )  # fmt: skip
    weak = doctor_line(open_program, tmp_path)
    assert (weak["ok"], weak["needed"], str(weak["remedy"]).startswith(PROTECT)) == (False, False, True)


def test_the_variables_that_protect_a_server_are_in_the_documents() -> None:
    root = Path(__file__).parents[3]
    for document in ("docs/prefect.md", "docs/scale.md"):
        text = (root / document).read_text()
        for variable in (
            "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING",
            "PREFECT_SERVER_CSRF_PROTECTION_ENABLED=true", "PREFECT_SERVER_CORS_ALLOWED_ORIGINS=",
        ):  # fmt: skip
            assert variable in text, f"{document} does not name {variable}"
