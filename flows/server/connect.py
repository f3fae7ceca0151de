"""The Prefect API that a run uses: the configured API, or the API of a temporary server."""

from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL

from tasks.errors import EnvironmentUnusable


def ensure() -> None:
    """Check the configured Prefect API, or start a temporary server if there is none. Raises EnvironmentUnusable."""
    url = PREFECT_API_URL.value()
    if url is None:
        # Imported only here, because it imports Prefect's whole server, which takes seconds.
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
                remedy="start a server there, or unset PREFECT_API_URL to use a temporary one",
            )
