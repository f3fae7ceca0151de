"""Writes a run for MLflow: an experiment per run in a database of SQLite, and in it a run per cell, below a whole."""

import logging
import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing is sent

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.store.tracking import SEARCH_MAX_RESULTS_THRESHOLD
from mlflow.utils import mlflow_tags as own
from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH, MAX_PARAMS_TAGS_PER_BATCH, MAX_TAG_VAL_LENGTH

from qnnsweep.tasks.report.trackers.tracked import Tracked, TrackedRun

_IS_WHOLE = "qnnsweep.is_whole"
"""The tag of an experiment that was written to its end."""
OPEN = "mlflow ui --backend-store-uri sqlite:///{folder}/mlflow.db"


def has(run_id: str, folder: Path) -> bool:
    """Return whether the whole run is in the folder."""
    if not (folder / "mlflow.db").exists():
        return False
    experiment = _client(folder).get_experiment_by_name(run_id)
    return experiment is not None and _IS_WHOLE in experiment.tags


def write(run: TrackedRun, folder: Path) -> None:
    """Add the run to the database in the folder. What an interrupted call left of it is deleted."""
    client = _client(folder)
    left = client.get_experiment_by_name(run.run_id)
    if left is None:
        artifacts = (folder.absolute() / "artifacts" / run.run_id).as_uri()
        experiment = client.create_experiment(run.run_id, artifacts, {own.MLFLOW_RUN_NOTE: run.whole.tags["summary"]})
    else:
        experiment = left.experiment_id
        for part in client.search_runs([experiment], max_results=SEARCH_MAX_RESULTS_THRESHOLD):
            client.delete_run(part.info.run_id)
    whole = _write_one(client, experiment, run, run.whole, {})
    if run.report is not None:
        client.log_artifact(whole, str(run.report))
    for cell in run.cells:
        _write_one(client, experiment, run, cell, {own.MLFLOW_PARENT_RUN_ID: whole})
    client.set_experiment_tag(experiment, _IS_WHOLE, "true")


def _client(folder: Path) -> MlflowClient:
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    return MlflowClient(f"sqlite:///{folder.absolute()}/mlflow.db")


def _write_one(client: MlflowClient, experiment: str, run: TrackedRun, one: Tracked, tags: dict[str, str]) -> str:
    """Write a cell, or the whole run, and return its id."""
    if diagnosis := one.tags.get("diagnosis"):
        tags = tags | {own.MLFLOW_RUN_NOTE: diagnosis}
    created = client.create_run(experiment, _milliseconds(run.started), tags, one.name)
    run_id, now = created.info.run_id, _milliseconds(run.ended)
    client.log_batch(run_id, metrics=[Metric(name, value, now, 0) for name, value in one.metrics.items()])
    params = [Param(*item) for item in _allowed(one.parameters, MAX_PARAM_VAL_LENGTH)]
    for first in range(0, len(params), MAX_PARAMS_TAGS_PER_BATCH):
        client.log_batch(run_id, params=params[first : first + MAX_PARAMS_TAGS_PER_BATCH])
    client.log_batch(run_id, tags=[RunTag(*item) for item in _allowed(one.tags, MAX_TAG_VAL_LENGTH)])
    client.set_terminated(run_id, "FAILED" if one.has_failed else "FINISHED", now)
    return run_id


def _allowed(texts: Mapping[str, str], most: Any) -> Iterator[tuple[str, str]]:
    """Yield names of the characters, and texts of the length, that MLflow accepts."""
    for name, text in texts.items():
        yield re.sub(r"[^\w.\-/ ]", "_", name, flags=re.ASCII), text[:most]


def _milliseconds(time: datetime) -> int:
    return int(1000 * time.timestamp())
