"""The Prefect API of a run: the one that is configured, or a temporary one."""

from __future__ import annotations

from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL

from tasks.errors import EnvironmentUnusable


def ensure() -> None:
    """Have a Prefect API that answers. Raises EnvironmentUnusable."""
    url = PREFECT_API_URL.value()
    if url is None:
        # Here alone: it imports Prefect's whole server, for seconds.
        from flows.server.temporary import Server

        try:
            Server().start()
        except (RuntimeError, OSError) as error:
            raise EnvironmentUnusable(f"Prefect's temporary server does not start: {error}") from error
        return
    with get_client(sync_client=True) as client:
        if (error := client.api_healthcheck()) is not None:
            raise EnvironmentUnusable(
                f"PREFECT_API_URL={url}: {error}",
                remedy="start a server there, or unset it for a temporary one",
            )
