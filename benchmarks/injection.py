"""A test whether the comparison names a damaged operator: 30 operators, 6 kinds of damage, 3 real captures.

Damages the captured tensor of one operator, propagates the damage to later operators, and compares the capture as
usual. Counts how often the damaged operator is the worst one, and how often an undamaged operator is reported.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from cells import cell
from damage import KINDS, Scene, damaged, error_db, error_steps, written

from conf.tolerances import OperatorTolerance
from tasks.comparison.capture import compare_capture
from tasks.comparison.evidence import Evidence
from tasks.numerics.verdict import limits, worst_operator
from tasks.records import Capture, LoweredProgram, OperatorComparison
from tasks.records.options import ComparisonOptions
from tasks.storage.store import Store

CELLS = (("efficientnet_lite0", "16a8w"), ("minilm_l6", "16a8w"), ("digits_cnn", "8a8w"))
OPERATORS = 30
SOC = "SM8650"


@dataclass(frozen=True, kw_only=True, slots=True)
class Injection:
    """One damage and the result of the comparison."""

    model: str
    scheme: str
    operator: str
    kind: str
    snr_db: float | None
    steps: float
    status: str
    verdict: str
    named: bool
    blamed: tuple[str, ...]
    """Undamaged operators that are reported to introduce error, but are not reported without the damage."""

    @property
    def visible(self) -> bool:
        """Return whether the damage can be detected: damage to unused or unrepresentable elements is not an error."""
        return self.verdict == "introduced" or self.status == "compared"


def inject(
    lowered: LoweredProgram, capture: Capture, tolerances: dict[str, OperatorTolerance], operators: int, store: Store
) -> list[Injection]:
    """Damage and compare, in a worker."""
    scene = Scene.first(Evidence(lowered, capture, store))
    assert capture.debug_buffer is not None
    buffer = store.read(capture.debug_buffer)

    def compared(data: bytes) -> tuple[OperatorComparison, ...]:
        with_damage = replace(capture, debug_buffer=store.put_bytes(data))
        options = ComparisonOptions(classifier=False, tolerances=tolerances)
        return compare_capture(lowered, with_damage, options, store).operators

    already = {row.operator.index for row in compared(buffer) if row.verdict == "introduced"}
    candidates = [
        index
        for index, captured in scene.captured.items()
        if index not in already
        and captured.elements.size > 1
        and (lowered.operators[index].dtype or "").startswith("float")
    ]
    chosen = sorted(random.Random(0).sample(candidates, min(operators, len(candidates))))  # noqa: S311 - not a secret
    injections: list[Injection] = []
    for index in chosen:
        allowed = limits(tolerances, lowered.quantized.scheme, lowered.operators[index].target)
        for kind in KINDS:
            changed = damaged(scene, index, kind)
            snr_db = error_db(scene.captured[index], changed[index])
            steps = error_steps(scene.captured[index], changed[index])
            if snr_db is None or (allowed.steps is not None and steps <= allowed.steps):
                continue  # within the grid, or no change at all
            rows = compared(written(scene, changed, buffer))
            worst = worst_operator([row for row in rows if row.operator.index not in already])
            damaged_row = next(row for row in rows if row.operator.index == index)
            others = [row for row in rows if row.operator.index not in {index, *already}]
            injections.append(
                Injection(
                    model=lowered.quantized.exported.model,
                    scheme=lowered.quantized.scheme,
                    operator=lowered.operators[index].name,
                    kind=kind,
                    snr_db=snr_db,
                    steps=steps,
                    status=damaged_row.status,
                    verdict=damaged_row.verdict,
                    named=worst is not None and worst.operator.index == index,
                    blamed=tuple(row.operator.name for row in others if row.verdict == "introduced"),
                )
            )
    return injections


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifacts", default="artifacts", help="where the runs of the cells are, or are created")
    parser.add_argument("--operators", type=int, default=OPERATORS, help="operators per capture")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args()
    summary: dict[str, dict[str, int]] = {}
    for model, scheme in CELLS:
        overrides = (f"model={model}", f"scheme={scheme}", f"soc={SOC}", "measure.operator_samples=1")
        request, resources, evidence = cell(options.artifacts, *overrides)
        work = (evidence.lowered, evidence.capture, request.tolerance.operators, options.operators, resources.store)
        injections = resources.workers.call("compare", inject, *work).value
        print(f"\n{model} {scheme} {SOC}")
        for kind in KINDS:
            same = [injection for injection in injections if injection.kind == kind]
            named = sum(injection.named for injection in same)
            blamed = sum(bool(injection.blamed) for injection in same)
            print(f"  {kind:18} named in {named} of {len(same)}, another operator reported in {blamed}")
            summary[f"{model} {scheme} {kind}"] = {"injected": len(same), "named": named, "another_blamed": blamed}
        for injection in injections:
            if not injection.named or injection.blamed:
                print("   ", asdict(injection))
    if options.json:
        print(json.dumps(summary))


if __name__ == "__main__":
    main()
