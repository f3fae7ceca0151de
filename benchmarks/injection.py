"""A test whether the comparison names a damaged operator and the right cause, on real captures.

Each damage changes one operator of an undamaged capture, spreads to later operators as on the device, and the capture
is compared as usual. A kind of damage has up to 30 operators per model: a random choice of those that qualify. The
kinds are in operator_errors.py. An operator qualifies for a kind if

- its verdict in the undamaged capture is neither `introduced` nor `biased`;
- the kind applies to it: for example, it has unused elements, a channel of outliers, or quantized weights;
- the damage changes a used element of another logged value, or a final output: what nothing reads is no error;
- the damage does not undo an error of the operator before it: the device's additions are often wrong by one step;
- for the kinds that are not about small errors: a used element is off by more than the operator's tolerance in steps.

What the comparison says is compared with what it says about the undamaged capture:

- `verdict`: the damaged operator has the right verdict. If the device's values are damaged, this is `introduced` or
  `biased`: the operators that the device computes wrongly. If a grid is damaged, it is `grid`, provided that the value
  is beyond the tolerance and the rounding to the grid is the largest part of its error. If weights or a grid are
  damaged, the device computes what the lowering says, so `introduced`, `biased` and `contradicted` are wrong.
- `budget`: at the damaged operator, the energy of the right cause (`device`, `clipping`, `resolution` or `weights`)
  grew by a larger factor than at any other operator. Energies below a millionth of the undamaged error count as a
  millionth. It is a factor, because an unchanged error of another operator has another effect once its inputs changed:
  in MiniLM, scores are rounded to integers. The budget has no derivative at a value that is not floating point.
- `named`: the damaged operator is named with the right cause. If the device's values are damaged, `verdict`, because
  these verdicts state the operator and the cause; the damage need not have an effect on the final outputs, and where
  it has, `budget` confirms the cause. Otherwise `verdict` and `budget`, because no verdict states the cause.
- `blamed`: an undamaged operator is newly `introduced`. New verdicts `biased` and `contradicted` of undamaged operators
  are counted too, separately.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from cells import cell
from operator_errors import KINDS, Kind, error_db, error_steps
from safetensors.numpy import load
from scene import Change, Scene, ScratchStore

from qnnsweep.conf.tolerances import OperatorTolerance
from qnnsweep.tasks.comparison.evidence import Evidence
from qnnsweep.tasks.comparison.operators import OperatorComparer
from qnnsweep.tasks.numerics.element_use import CapturedValue
from qnnsweep.tasks.numerics.verdict import EVERY_SCHEME, limits, of_scheme
from qnnsweep.tasks.records import CapturedMethod, ErrorShare, LoweredMethod, OperatorComparison
from qnnsweep.tasks.records.options import ComparisonOptions
from qnnsweep.tasks.records.vocabulary import OWN_ERROR, Cause, Verdict
from qnnsweep.tasks.storage.store import Store

Cell = tuple[str, str, str | None]
PICKING = str(Path(__file__).parent / "picking_models")
CELLS: tuple[Cell, ...] = (
    ("efficientnet_lite0", "16a8w", None),
    ("minilm_l6", "16a8w", None),
    ("digits_cnn", "8a8w", None),
    ("picks", "8a8w", PICKING),
)
"""The model, the scheme, and the folder with the model's configuration. The last model has comparisons and indices."""
OPERATORS = 30
LEAST = 1e-6
"""A smaller share of the undamaged error's energy counts as this share."""
SOC = "SM8650"


@dataclass(frozen=True, kw_only=True, slots=True)
class Injection:
    """One damage and the result of the comparison."""

    operator: str
    target: str
    kind: str
    snr_db: float | None
    """The SNR of the damaged value against the undamaged value."""
    steps: float
    """The largest error of a used element, in steps of the undamaged grid."""
    status: str
    verdict: Verdict
    verdict_before: Verdict
    has_right_verdict: bool
    has_right_cause: bool
    grown_most: str | None
    """The operator where the energy of the right cause grew by the largest factor."""
    energy_before: float
    """The energy of the right cause at the damaged operator, as a share of the undamaged error's energy."""
    energy: float
    """The same with the damage."""
    blamed: tuple[str, ...]
    """Undamaged operators with the verdict `introduced`, which they do not have without the damage."""
    biased: tuple[str, ...]
    """Undamaged operators with the verdict `biased`, which have no error of their own without the damage."""
    contradicted: tuple[str, ...]
    """Undamaged operators with the verdict `contradicted`, which they do not have without the damage."""

    @property
    def named(self) -> bool:
        """Return whether the damaged operator is named with the right cause."""
        return self.has_right_verdict and (self.has_right_cause or KINDS[self.kind].cause == "device")


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """What the comparison says about a capture."""

    rows: Mapping[int, OperatorComparison]
    energies: Mapping[Cause, Mapping[str, float]]
    """By cause and operator, the energy of the effects on the final outputs, as a share of the outputs' energy."""

    @classmethod
    def of(
        cls, lowered: LoweredMethod, capture: CapturedMethod, tolerances: dict[str, OperatorTolerance], store: Store
    ) -> Diagnosis:
        """Compare the operators of a capture and compute the budget, as the stage compare does."""
        options = ComparisonOptions(classifier=False, tolerances=tolerances)
        eager, device = (load(store.read(blob)) for blob in (lowered.quantized.exported.outputs_eager, capture.outputs))
        evidence = Evidence(lowered, capture, store)
        first = evidence.samples[0]  # only the first captured sample is damaged
        comparer = OperatorComparer(lowered, evidence, options, eager, device, {}, store, worst=(first, 0))
        (sample,) = comparer.samples([first])
        return cls(rows={row.operator.index: row for row in sample.operators}, energies=_energies(sample.budget))

    def with_verdict(self, *verdicts: Verdict) -> set[int]:
        """Return the indices of the operators with one of these verdicts."""
        return {index for index, row in self.rows.items() if row.verdict in verdicts}


class Bench:
    """The damages of one undamaged capture."""

    def __init__(
        self, lowered: LoweredMethod, capture: CapturedMethod, tolerances: dict[str, OperatorTolerance], store: Store
    ) -> None:
        self._scene = Scene(lowered, capture, store)
        self._lowered, self._tolerances, self._store = lowered, tolerances, store
        self._clean = Diagnosis.of(lowered, capture, tolerances, store)

    def qualified(self, kind: Kind, most: int) -> tuple[dict[int, Change], int]:
        """Return the changes of up to `most` operators, a random choice, and how many operators were examined."""
        already = self._clean.with_verdict(*OWN_ERROR, "contradicted")
        candidates = [index for index in self._scene.captured if index not in already]
        random.Random(0).shuffle(candidates)  # noqa: S311 - not a secret
        changes: dict[int, Change] = {}
        for examined, index in enumerate(candidates):
            if len(changes) == most:
                return changes, examined
            change = kind.change(self._scene, index)
            if change is not None and self._counts(kind, index, change):
                changes[index] = change
        return changes, len(candidates)

    def injected(self, name: str, index: int, change: Change) -> Injection:
        """Damage an operator and compare."""
        scene, clean, kind = self._scene, self._clean, KINDS[name]
        changed = scene.spread(change)
        with tempfile.TemporaryDirectory() as folder:
            scratch = ScratchStore(Path(folder), self._store)
            diagnosis = Diagnosis.of(*scene.written(change, changed, scratch), self._tolerances, scratch)
        before, after = clean.rows[index], diagnosis.rows[index]
        total = sum(sum(energies.values()) for energies in clean.energies.values())
        energies_before, energies = clean.energies[kind.cause], diagnosis.energies[kind.cause]
        factors = {
            operator: (energy + LEAST * total) / (energies_before.get(operator, 0.0) + LEAST * total)
            for operator, energy in energies.items()
        }
        grown_most = max(factors, key=lambda operator: factors[operator], default=None)
        others = {"introduced": ("introduced",), "biased": OWN_ERROR, "contradicted": ("contradicted",)}
        newly: dict[str, tuple[str, ...]] = {
            verdict: tuple(
                self._lowered.operators[other].name
                for other in sorted(diagnosis.with_verdict(verdict) - clean.with_verdict(*known) - {index})
            )
            for verdict, known in others.items()
        }
        return Injection(
            operator=after.operator.name,
            target=after.operator.target,
            kind=name,
            snr_db=error_db(scene.captured[index], changed[index]),
            steps=error_steps(scene.captured[index], changed[index], scene.counted(index)),
            status=after.status,
            verdict=after.verdict,
            verdict_before=before.verdict,
            has_right_verdict=_is_right(kind.cause, after, self._limits(index)),
            has_right_cause=grown_most == after.operator.name,
            grown_most=grown_most,
            energy_before=energies_before.get(after.operator.name, 0.0) / total,
            energy=energies.get(after.operator.name, 0.0) / total,
            blamed=newly["introduced"],
            biased=newly["biased"],
            contradicted=newly["contradicted"],
        )

    def _counts(self, kind: Kind, index: int, change: Change) -> bool:
        changed = self._scene.spread(change)
        damaged: CapturedValue | None = changed.get(index)
        if damaged is None or self._error_steps(index, damaged) == 0:
            return False
        if not self._scene.spreads(index, changed) or self._scene.undoes(index, changed):
            return False
        steps = self._limits(index).steps
        return kind.within_tolerance or steps is None or self._error_steps(index, damaged) > steps

    def _error_steps(self, index: int, damaged: CapturedValue) -> float:
        return error_steps(self._scene.captured[index], damaged, self._scene.counted(index))

    def _limits(self, index: int) -> OperatorTolerance:
        return limits(self._tolerances, EVERY_SCHEME, self._lowered.operators[index].target)


def inject(
    lowered: LoweredMethod,
    capture: CapturedMethod,
    tolerances: dict[str, OperatorTolerance],
    kinds: Sequence[str],
    operators: int,
    store: Store,
) -> tuple[list[Injection], dict[str, int]]:
    """Damage and compare, in a worker. Return the injections, and per kind how many operators were examined."""
    bench = Bench(lowered, capture, tolerances, store)
    injections: list[Injection] = []
    examined: dict[str, int] = {}
    for name in kinds:
        changes, examined[name] = bench.qualified(KINDS[name], operators)
        injections += [bench.injected(name, index, change) for index, change in sorted(changes.items())]
    return injections, examined


def _energies(budget: Sequence[ErrorShare]) -> dict[Cause, dict[str, float]]:
    energies: dict[Cause, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for share in budget:
        if share.operator is not None and share.alone_snr_db is not None:
            energies[share.cause][share.operator] += 10 ** (-share.alone_snr_db / 10)
    return {cause: dict(energies[cause]) for cause in ("weights", "clipping", "resolution", "device")}


def _is_right(cause: Cause, row: OperatorComparison, allowed: OperatorTolerance) -> bool:
    """Return whether the verdict on the damaged operator is right for the cause of the damage."""
    if cause == "device":
        return row.verdict in OWN_ERROR
    if row.verdict in (*OWN_ERROR, "contradicted"):
        return False  # the device computes what the lowering says
    total, rounding, inherited = row.gap.snr_db, row.parts.grid_snr_db, row.parts.inherited_snr_db
    if cause == "weights" or rounding is None or total is None or allowed.snr_db is None or total >= allowed.snr_db:
        return True
    return row.verdict == "grid" or (inherited is not None and inherited <= rounding)


def summary(injections: Sequence[Injection], examined: int) -> dict[str, int]:
    """Count the results of one kind of damage on one model."""
    return {
        "examined": examined,
        "qualified": len(injections),
        "verdict": sum(injection.has_right_verdict for injection in injections),
        "budget": sum(injection.has_right_cause for injection in injections),
        "named": sum(injection.named for injection in injections),
        "another_blamed": sum(bool(injection.blamed) for injection in injections),
        "another_biased": sum(bool(injection.biased) for injection in injections),
        "another_contradicted": sum(bool(injection.contradicted) for injection in injections),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifacts", default="artifacts", help="where the runs of the cells are, or are created")
    parser.add_argument("--operators", type=int, default=OPERATORS, help="operators per capture and kind")
    parser.add_argument("--models", nargs="*", default=[model for model, _, _ in CELLS], help="some of the models")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS), help="some kinds of damage")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args()
    table: dict[str, dict[str, int]] = {}
    for model, scheme, folder in CELLS:
        if model not in options.models:
            continue
        overrides = (f"model={model}", f"scheme={scheme}", f"soc={SOC}", "measure.operator_samples=1")
        request, resources, evidence = cell(options.artifacts, *overrides, config_dir=folder)
        print(f"\n{model} {scheme} {SOC}", flush=True)
        for kind in options.kinds:
            tolerances = of_scheme(request.tolerance.operators, request.scheme.name)
            records = evidence.lowered.methods[0], evidence.capture.methods[0]
            work = (*records, tolerances, (kind,), options.operators)
            injections, examined = resources.workers.call("compare", inject, *work, resources.store).value
            counted = summary(injections, examined[kind])
            table[f"{model} {scheme} {kind}"] = counted
            print(f"  {kind:18}" + ", ".join(f"{name} {count}" for name, count in counted.items()), flush=True)
            for injection in injections:
                if not injection.named or injection.blamed or injection.biased or injection.contradicted:
                    print("   ", asdict(injection), flush=True)
    total = Counter[str]()
    for counted in table.values():
        total.update(counted)
    print("\nin total: " + ", ".join(f"{name} {count}" for name, count in total.items()))
    if options.json:
        print(json.dumps(table))


if __name__ == "__main__":
    import injection  # a worker finds the functions of a module by its name

    injection.main()
