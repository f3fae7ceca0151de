"""The export of a run into a folder that an experiment tracker opens."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import Protocol, cast

from qnnsweep.flows.runs.results import find_run, report_name
from qnnsweep.tasks.errors import EnvironmentUnusable, RequestError
from qnnsweep.tasks.report.trackers.names import Tracker
from qnnsweep.tasks.report.trackers.tracked import TrackedRun, tracked
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store


class _Writer(Protocol):
    """A module of `qnnsweep.tasks.report.trackers`, whose import needs the package of the tracker."""

    OPEN: str
    has: Callable[[str, Path], bool]
    write: Callable[[TrackedRun, Path], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What was exported."""

    run_id: str
    tracker: str
    folder: str
    cells: int
    open: str
    """The command that opens the folder."""


def export(store: Store, name: str | None, tracker: Tracker, folder: Path | None) -> Exported:
    """Add a run to a folder; see `find_run`. Raises RequestError and EnvironmentUnusable.

    `folder`: by default `qnnsweep-` with the name of the tracker.
    """
    run = find_run(store, name)
    writer, folder = _writer(tracker), folder or Path(f"qnnsweep-{tracker.value}")
    cells, trends = (tables.rows(store, table, run.run_id) for table in ("cells", "trends"))
    report = None
    with suppress(FileNotFoundError):
        report = store.files.local(report_name(run.run_id))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if writer.has(run.run_id, folder):
            raise RequestError(f"--to={folder}: has the run {run.run_id} already; choose another folder")
        writer.write(tracked(run, cells, trends, report), folder)
    except OSError as error:
        raise RequestError(f"--to={folder}: cannot be written: {error.strerror}; choose another folder") from error
    opened = writer.OPEN.format(folder=quote(str(folder)))
    return Exported(run_id=run.run_id, tracker=tracker.value, folder=str(folder), cells=len(cells), open=opened)


def _writer(tracker: Tracker) -> _Writer:
    try:
        return cast("_Writer", import_module(f"qnnsweep.tasks.report.trackers.{tracker.value}"))
    except ImportError as error:
        raise EnvironmentUnusable(
            f"qnnsweep export {tracker.value} needs a package of its extra ({error})",
            remedy=f"pip install 'qnnsweep[{tracker.value}]'",
        ) from error
