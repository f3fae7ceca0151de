"""A test whether the operator and the cause that a cell names first are those whose absence removes most of the error.

For every cell, each error of the worst sample is left out alone: every cause at every operator, one run of the model of
the device's arithmetic per error. Of a large program, the product leaves out only the errors that derivatives rank
first. The error is that of the program that ships: its difference from the debug program is kept.

- `right`: without the part that the budget names first, the error's energy is the smallest, or larger by at most 1 % of
  the whole error's energy.
- `unexplained`: the share of the error that no cause has.
- `words`: the number of words of the sentence of the cell.

The models are in `ablation_models`, and others can be given with a folder of configurations. None of them ships.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from cells import MORE_NAMES, NAMES, all_cells, asked_cells
from safetensors.numpy import load

from qnnsweep.conf.tolerances import OperatorTolerance
from qnnsweep.tasks.comparison.budget import sample_runs
from qnnsweep.tasks.comparison.evidence import Evidence, debug_outputs, device_outputs
from qnnsweep.tasks.comparison.methods import compare_methods
from qnnsweep.tasks.comparison.weights import weight_errors
from qnnsweep.tasks.numerics.ablation import error_energy, shifted
from qnnsweep.tasks.numerics.arithmetic import ARISING, Part
from qnnsweep.tasks.numerics.device_run import DeviceRun
from qnnsweep.tasks.numerics.introduced import Introduced
from qnnsweep.tasks.numerics.metrics import signed_error
from qnnsweep.tasks.numerics.replay import replay
from qnnsweep.tasks.numerics.reported import reported_budget, reported_output
from qnnsweep.tasks.numerics.verdict import EVERY_SCHEME, has_own_error, limits, of_scheme
from qnnsweep.tasks.records import Capture, LoweredProgram
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.records.options import ComparisonOptions
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store

SCHEMES = "8a8w,16a8w,fp16"
_AS_GOOD = 0.01  # of the whole error's energy


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """What the budget of one cell names first, and what a full leave-one-out finds."""

    named: tuple[str, str] | None
    found: tuple[str, str] | None
    is_right: bool
    of_cause: float
    """The named cause's share of the error, at all operators. Below 0.1, the sentence names a larger cause."""
    unexplained: float


def judge(
    lowered: LoweredProgram, capture: Capture, tolerances: dict[str, OperatorTolerance], store: Store
) -> Judged | None:
    """Compare, and leave every error out, in a worker. Return None for a cell without an error or a budget."""
    options = ComparisonOptions(classifier=False, tolerances=tolerances)
    comparison = compare_methods(lowered, capture, options, store)
    worst, budget = reported_output(comparison), reported_budget(comparison)
    first = next((share for share in budget if share.operator is not None), None)
    if worst is None or first is None:
        return None
    method, captured = lowered.methods[0], capture.methods[0]
    evidence = Evidence(method, captured, store)
    kernels, inputs = next(evidence.kernels([worst.sample]))
    values = evidence.captured_values(worst.sample)
    floats = weight_errors(method, store, kernels).floats(kernels)
    run = DeviceRun(kernels, values, evidence.requantized_values(worst.sample, kernels.sources, values))

    def is_suspect(index: int, introduced: Introduced) -> bool:
        return has_own_error(introduced, limits(tolerances, EVERY_SCHEME, method.operators[index].target))

    replayed = replay(run, is_suspect, lambda index: evidence.reference(worst.sample, index), floats, with_errors=True)
    runs, errors = sample_runs(method.input_grids, run, inputs, floats, replayed)
    key = tensor_key(worst.sample, worst.output_index)
    eager = load(store.read(method.exported.outputs_eager))[key]
    shipping = device_outputs(method, captured.outputs, store)[key]
    debug = debug_outputs(method, captured, store).get(key, shipping)
    whole, observer = error_energy(shipping, eager), signed_error(shipping, debug, np.float64)
    runs.without(frozenset())
    removed: dict[Part, float] = {}
    for index, parts in errors.items():
        for cause in parts.keys() & set(ARISING):
            outputs = runs.without(frozenset(), (cause, index))
            output = None if outputs is None else shifted(outputs[worst.output_index], observer, shipping)
            removed[cause, index] = math.inf if output is None else error_energy(output, eager)

    def name(part: Part) -> tuple[str, str]:
        cause, index = part
        return cause, method.operators[index].name if index >= 0 else method.exported.inputs[-1 - index].name

    by_name = {name(part): energy for part, energy in removed.items()}
    found = min(by_name, key=by_name.__getitem__)
    named = first.cause, first.operator or ""
    totals = {share.cause: share.share or 0.0 for share in budget if share.operator is None}
    is_right = by_name.get(named, math.inf) <= by_name[found] + _AS_GOOD * whole
    of_cause, unexplained = totals.get(first.cause, 0.0), totals.get("unexplained", 0.0)
    return Judged(named=named, found=found, is_right=is_right, of_cause=of_cause, unexplained=unexplained)


def _sentence(store: Store, names: list[str]) -> str:
    """Return the sentence of the newest cell of a model, a scheme and an SoC."""
    rows = (row for run in reversed(tables.runs(store)) for row in tables.rows(store, "cells", run))
    return next(row["diagnosis"] or "" for row in rows if [row["model"], row["scheme"], row["soc"] or ""] == names)


def main() -> None:
    options, overrides = asked_cells(__doc__, SCHEMES, f"{NAMES},{MORE_NAMES}")
    judged: list[Judged] = []
    words: list[int] = []
    resources, cells = all_cells(options.artifacts, overrides, options.config_dir)
    for request, evidence in cells:
        names = [request.model.name, request.scheme.name, request.soc.name if request.soc else ""]
        if evidence is None:
            print("/".join(names), "has no capture", flush=True)
            continue
        tolerances = of_scheme(request.tolerance.operators, request.scheme.name)
        work = evidence.lowered, evidence.capture, tolerances, resources.store
        result = resources.workers.call("compare", judge, *work).value
        words.append(len(_sentence(resources.store, names).split()))
        print("/".join(names), f"{words[-1]} words", "no error" if result is None else asdict(result), flush=True)
        judged += [] if result is None else [result]
    summary = {
        "cells": len(judged),
        "culprit_right": sum(result.is_right for result in judged) / max(len(judged), 1),
        "largest_unexplained": max((result.unexplained for result in judged), default=0.0),
        "words_median": median(words) if words else 0,
    }
    print(", ".join(f"{name} {value:.3g}" for name, value in summary.items()))
    if options.json:
        print(json.dumps(summary))


if __name__ == "__main__":
    import ablation  # a worker finds the functions of a module by its name

    ablation.main()
