"""The cells that the benchmarks use, with their captures, from an earlier run or, without one, from a new sweep."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from qnnsweep.conf.errors import NOT_ALL_PASSED, PASSED
from qnnsweep.conf.load import load
from qnnsweep.conf.schema import Request
from qnnsweep.flows.cells.resources import Resources, prepare
from qnnsweep.flows.runs.files import CellEvidence, read_evidence
from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store

MODELS = str(Path(__file__).parent / "ablation_models")
NAMES = "residual,outlier,mixer,narrow,heads"
"""The folder and the names of small networks that do not ship."""
MORE_NAMES = "squeeze,unet,encoder,audio,gated,detector,spike,ranges,grouped,pyramid,recurrent,retrieval"
"""Further networks of the folder, of many kinds."""
EVERY_NAME = ",".join(sorted(file.stem for file in Path(MODELS, "model").glob("*.yaml")))
"""All networks of the folder."""


def asked_cells(about: str | None, schemes: str, models: str = NAMES) -> tuple[argparse.Namespace, list[str]]:
    """Read the arguments of a benchmark of cells. Return them, and the overrides that select the cells.

    `about`: the benchmark's docstring. `schemes`, `models`: those by default, with commas between them.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifacts", default="artifacts", help="the folder of the runs and of the cache")
    parser.add_argument("--config-dir", default=MODELS, help="the folder with the models")
    parser.add_argument("--models", default=models, help="the models, with commas between them")
    parser.add_argument("--schemes", default=schemes, help="the schemes, with commas between them")
    parser.add_argument("--socs", default="SM8650", help="the SoCs, with commas between them")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args()
    return options, [f"model={options.models}", f"scheme={options.schemes}", f"soc={options.socs}"]


def cell(artifacts: str, *overrides: str, config_dir: str | None = None) -> tuple[Request, Resources, CellEvidence]:
    """Return the only cell of the overrides, from the newest run below `artifacts` that has it, or from a new sweep.

    `config_dir`: a folder with the benchmark's own configuration.
    """
    plan = load([*overrides], config_dirs=[Path(config_dir)] if config_dir else [])
    (planned,) = plan.cells
    evidence = next(_stored(Path(artifacts), planned.request), None)
    if evidence is None:
        _sweep(artifacts, overrides, config_dir)
        evidence = next(_stored(Path(artifacts), planned.request))
    return planned.request, prepare(replace(plan, artifacts=artifacts)), evidence


def all_cells(
    artifacts: str, overrides: Sequence[str], config_dir: str
) -> tuple[Resources, list[tuple[Request, CellEvidence | None]]]:
    """Return the cells of the overrides, after a sweep of all of them if a run is missing for one; see `cell`.

    The evidence is None for a cell that has no capture.
    """
    plan = load(overrides, config_dirs=[Path(config_dir)])

    def found() -> list[tuple[Request, CellEvidence | None]]:
        requests = [planned.request for planned in plan.cells]
        return [(request, next(_stored(Path(artifacts), request), None)) for request in requests]

    cells = found()
    if any(evidence is None for _, evidence in cells):
        _sweep(artifacts, overrides, config_dir)
        cells = found()
    return prepare(replace(plan, artifacts=artifacts)), cells


def _sweep(artifacts: str, overrides: Sequence[str], config_dir: str | None) -> None:
    program = Path(sys.executable).with_name("qnnsweep")
    folder = ["--config-dir", config_dir] if config_dir else []
    command = [str(program), "run", *folder, f"artifacts={artifacts}", *overrides]
    ran = subprocess.run(command, check=False, stdout=sys.stderr)
    if ran.returncode not in (PASSED, NOT_ALL_PASSED):  # a cell that is out of tolerance is measured, too
        raise SystemExit(ran.returncode)


def _stored(artifacts: Path, request: Request) -> Iterator[CellEvidence]:
    store = Store(artifacts)
    for run_id in reversed(tables.runs(store)):
        with contextlib.suppress(EvidenceError):  # the record is of an earlier version
            evidence = read_evidence(run_id, request, store)
            if evidence is not None and len(evidence.lowered.methods[0].chosen) == _samples(request, evidence):
                yield evidence


def _samples(request: Request, evidence: CellEvidence) -> int:
    """Return the number of samples that a run of the request chooses to capture."""
    return min(request.measure.operator_samples, len(evidence.lowered.methods[0].exported.sample_names))
