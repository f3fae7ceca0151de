"""The use of Dask workers instead of a work pool. It needs the extra `qnnsweep[dask]` and a running Dask scheduler."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from prefect.task_runners import TaskRunner

from qnnsweep.tasks.errors import EnvironmentUnusable


@contextmanager
def dask_task_runner(address: str) -> Generator[TaskRunner[Any]]:
    """Yield a task runner for the Dask scheduler at `address`. Raises EnvironmentUnusable if no scheduler is there."""
    try:
        from prefect_dask.task_runners import DaskTaskRunner
    except ImportError:
        raise EnvironmentUnusable(
            "--dask: prefect-dask is not installed", remedy="pip install 'qnnsweep[dask]'"
        ) from None
    with DaskTaskRunner(address=address) as task_runner:
        try:
            task_runner.client  # noqa: B018 - the first access connects
        except (OSError, ValueError) as error:
            raise EnvironmentUnusable(
                f"--dask={address}: no Dask scheduler answers there: {error}", remedy="start `dask scheduler` there"
            ) from error
        yield task_runner
