"""Dask workers instead of Prefect's: the extra `qnnsweep[dask]`, and a scheduler that somebody started."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from prefect.task_runners import TaskRunner

from tasks.errors import EnvironmentUnusable


@contextmanager
def runner(address: str) -> Generator[TaskRunner[Any]]:
    """Prefect's task runner on the Dask scheduler at that address. Raises EnvironmentUnusable."""
    try:
        from prefect_dask.task_runners import DaskTaskRunner
    except ImportError:
        raise EnvironmentUnusable("--dask: prefect-dask is missing: pip install 'qnnsweep[dask]'") from None
    with DaskTaskRunner(address=address) as made:
        try:
            made.client  # noqa: B018 - it connects when it is first asked for
        except (OSError, ValueError) as error:
            raise EnvironmentUnusable(f"--dask={address}: no Dask scheduler answers there: {error}") from error
        yield made
