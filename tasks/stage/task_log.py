"""The end of a process's log, in the log of the task run that started the process."""

from contextlib import suppress

from prefect.logging import get_run_logger

from qnnsweep.tasks.errors import EvidenceError, QnnsweepError
from qnnsweep.tasks.records import Blob, StageCall
from qnnsweep.tasks.storage.store import Store

_LINES_OF_FAILURE = 40
_LINES_OF_SUCCESS = 8
_BYTES_PER_LINE = 400


def log_success(result: object, store: Store) -> None:
    """Log the last lines of the log of the call that made `result`, the last of its calls, if it has one."""
    made: tuple[StageCall, ...] = getattr(result, "made", ())
    if made and made[-1].log is not None:
        _log_end(made[-1].log, _LINES_OF_SUCCESS, store)


def log_failure(error: QnnsweepError, store: Store) -> None:
    """Log the last lines of the log of the process that failed, if it has one."""
    sha256 = getattr(error, "log", None)
    if isinstance(sha256, str) and (blob := store.find(sha256)) is not None:
        _log_end(blob, _LINES_OF_FAILURE, store)


def _log_end(blob: Blob, most: int, store: Store) -> None:
    with suppress(EvidenceError):  # a damaged log is reported by `qnnsweep cache verify`
        text = store.read_end(blob, most * _BYTES_PER_LINE).decode(errors="replace")
        if lines := [line for line in text.splitlines() if line.strip()][-most:]:
            get_run_logger().info("the last lines of the log %s:\n%s", blob.sha256, "\n".join(lines))
