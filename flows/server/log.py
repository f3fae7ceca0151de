"""Warnings in the log of the running flow."""

import logging


def warn(line: str) -> None:
    """Log a warning of the running flow, which Prefect's UI shows. Outside a flow, use Python's logging."""
    # Imported here, because Prefect takes seconds and there is rarely a warning.
    from prefect.exceptions import MissingContextError
    from prefect.logging import get_run_logger

    try:
        get_run_logger().warning("%s", line)
    except MissingContextError:
        logging.getLogger(__name__).warning("%s", line)
