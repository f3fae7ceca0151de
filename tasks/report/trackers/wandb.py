"""Writes a run for Weights & Biases: an offline run per cell and one for the whole, all in one group."""

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # nothing is sent

import wandb

from qnnsweep.tasks.report.trackers.tracked import Tracked, TrackedRun

OPEN = "wandb sync {folder}/wandb/offline-run-*"
_MOST_LABEL, _MOST_TEXT = 64, 4000


def has(run_id: str, folder: Path) -> bool:
    """Return whether the run is already in the folder."""
    return any(folder.glob(f"wandb/offline-run-*-{run_id}"))


def write(run: TrackedRun, folder: Path) -> None:
    """Write an offline run per cell, and one for the whole, which appears in the folder last.

    What an interrupted call left of them is deleted.
    """
    with TemporaryDirectory(dir=folder) as temporary:
        for number, cell in enumerate(run.cells):
            _write_one(run, Path(temporary), cell, f"{run.run_id}-{number}", "cell")
        _write_one(run, Path(temporary), run.whole, run.run_id, "sweep")
        written = Path(temporary).glob("wandb/offline-run-*")
        (folder / "wandb").mkdir(exist_ok=True)
        for left in folder.glob(f"wandb/offline-run-*-{run.run_id}*"):
            shutil.rmtree(left)
        for part in sorted(written, key=lambda part: part.name.endswith(f"-{run.run_id}")):
            part.rename(folder / "wandb" / part.name)


def _write_one(run: TrackedRun, folder: Path, one: Tracked, id_: str, kind: str) -> None:
    quiet = wandb.Settings(
        silent=True,
        console="off",
        save_code=False,
        disable_git=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_start_time=run.started.timestamp(),
    )
    with wandb.init(
        dir=folder,
        mode="offline",
        project="qnnsweep",
        group=run.run_id,
        job_type=kind,
        id=id_,
        name=one.name,
        notes=one.tags.get("diagnosis"),
        tags=[one.tags[name][:_MOST_LABEL] for name in ("outcome", "verdict") if name in one.tags],
        config=dict(one.parameters),
        settings=quiet,
    ) as written:
        written.summary.update({**one.metrics, **{name: text[:_MOST_TEXT] for name, text in one.tags.items()}})
        if kind == "sweep" and run.report is not None:
            shutil.copy(run.report, written.dir)
            written.save(f"{written.dir}/{run.report.name}", base_path=written.dir)
        written.finish(exit_code=int(one.has_failed))
