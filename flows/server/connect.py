"""The Prefect API that a run uses: the configured API, or the API of a temporary server.

Whoever can create a flow run of a served sweep chooses its overrides, and an override can name any function. So a
server that accepts requests without a login gives everybody who can reach it the right to run commands here.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context

from httpx import HTTPError, HTTPStatusError, codes
from prefect.client.base import ServerType
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_KEY,
    PREFECT_API_URL,
    PREFECT_CLIENT_CUSTOM_HEADERS,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    get_current_settings,
    temporary_settings,
)
from prefect.states import Cancelled

from qnnsweep.flows.server import temporary
from qnnsweep.flows.server.temporary import TemporaryServer
from qnnsweep.tasks.errors import EnvironmentUnusable

ACCEPT_OPEN_SERVER = "QNNSWEEP_ACCEPT_OPEN_SERVER"
"""The environment variable with which a user accepts a server without a login, if its value is 1."""
_CANCEL_S = 5.0
"""How long the end of an interrupted run may wait for the server."""
_PROTECT = (
    "start the server with PREFECT_SERVER_API_AUTH_STRING=USER:PASSWORD, PREFECT_SERVER_CSRF_PROTECTION_ENABLED=true "
    "and PREFECT_SERVER_CORS_ALLOWED_ORIGINS= (empty), and set PREFECT_API_AUTH_STRING=USER:PASSWORD here"
)


def start() -> TemporaryServer | None:
    """Start a temporary server if no Prefect API is configured. Does not wait for it: see `ensure`."""
    if PREFECT_API_URL.value() is not None:
        return None
    return temporary.start()


def ensure(server: TemporaryServer | None = None) -> None:
    """Wait until a Prefect API can be used: that of `server`, the configured API, or that of a new temporary server.

    Raises EnvironmentUnusable.
    """
    server = server or start()
    if server is None:
        return check_login()
    try:
        server.connect()
    except HTTPError as error:
        raise EnvironmentUnusable(f"Prefect's temporary server does not respond: {error}") from error
    return None


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise EnvironmentUnusable if the Prefect API stops to answer, or answers with an error, even after retries."""
    try:
        yield
    except HTTPError as error:
        (problem, *_) = str(error).splitlines() or [type(error).__name__]
        raise EnvironmentUnusable(
            f"PREFECT_API_URL={PREFECT_API_URL.value()}: {problem.partition(' - ')[0]}",
            remedy="when the server answers again, run the same command again to continue",
        ) from error


@contextmanager
def without_heartbeats() -> Iterator[None]:
    """Let flow runs send no heartbeats, unless the user has set their interval.

    At the end of a flow run, Prefect waits up to a second for the thread that sends them.
    """
    is_set = "heartbeat_frequency" in get_current_settings().flows.model_fields_set
    with nullcontext() if is_set else temporary_settings(updates={PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


def cancel_flow_run() -> None:
    """Mark the flow run of this thread as cancelled, if the server answers soon. Its process is about to end."""
    if (run_id := flow_run.id) is None:
        return

    def cancel() -> None:
        with suppress(HTTPError, PrefectException), get_client(sync_client=True) as client:
            client.set_flow_run_state(run_id, Cancelled(message="interrupted"), force=True)

    thread = threading.Thread(target=copy_context().run, args=(cancel,), daemon=True)
    thread.start()
    thread.join(_CANCEL_S)


def check_login() -> None:
    """Raise EnvironmentUnusable unless the configured Prefect API answers and accepts the configured login."""
    url = PREFECT_API_URL.value()
    with get_client(sync_client=True) as client:
        if (error := client.api_healthcheck()) is not None:
            raise EnvironmentUnusable(
                f"PREFECT_API_URL={url}: {error}",
                remedy="start a server there, or unset PREFECT_API_URL to use a temporary one",
            )
        if client.server_type is ServerType.CLOUD:
            return
        try:
            client.api_version()
        except HTTPStatusError as error:
            if error.response.status_code not in (codes.UNAUTHORIZED, codes.FORBIDDEN):
                raise EnvironmentUnusable(f"PREFECT_API_URL={url}: {error}") from error
            raise EnvironmentUnusable(
                f"PREFECT_API_URL={url}: the server refuses the login",
                remedy="set PREFECT_API_AUTH_STRING to the value of the server's PREFECT_SERVER_API_AUTH_STRING",
            ) from None


def check_protected() -> None:
    """Raise EnvironmentUnusable if the configured Prefect API needs no login, unless the user accepts this."""
    if is_open() and os.environ.get(ACCEPT_OPEN_SERVER) != "1":
        raise EnvironmentUnusable(
            f"PREFECT_API_URL={PREFECT_API_URL.value()}: the server needs no login, so everybody who can reach it can "
            "run commands here",
            remedy=f"{_PROTECT}; or set {ACCEPT_OPEN_SERVER}=1 to accept this",
        )


def is_open() -> bool:
    """Return whether the configured Prefect API answers a request without a login."""
    no_login = {PREFECT_API_AUTH_STRING, PREFECT_API_KEY, PREFECT_CLIENT_CUSTOM_HEADERS}
    with temporary_settings(restore_defaults=no_login), get_client(sync_client=True) as client:
        if client.server_type is ServerType.CLOUD:
            return False
        try:
            client.api_version()
        except HTTPStatusError:
            return False
    return True
