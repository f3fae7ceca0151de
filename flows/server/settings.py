"""The settings of Prefect, which must be set before its first import. Settings of the user take precedence."""

import os

_SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # The terminal shows the live table instead of the log. Prefect's UI shows the full log.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
}


def configure_prefect() -> None:
    """Set every setting that the user has not set. Must be called before the first import of Prefect."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
