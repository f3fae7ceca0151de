"""How Prefect is to behave here, set before it is first imported. What the user has set himself stays."""

from __future__ import annotations

import os

_SETTINGS = {
    # A cold start of Prefect's own server takes up to half a minute on a small machine.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # A device's lease must outlive the temporary server of the process that took it: in files, not in its memory.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    # The terminal shows the live table instead; the UI has every line.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
}


def configure_prefect() -> None:
    """Set what is not set. Must run before anything imports prefect."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
