"""Whether cases that fail, abort or do not end affect other cases: python benchmarks/isolation.py [--cases 200].

A tenth of the cases of a collection has a planted fault: an abort or an error in the export or in the lowering, or an
export that does not end. Every other case is the same healthy sum, whose outcome must be equal everywhere.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


from qnnsweep.conf.atlas_plan import atlas_overrides, planned
from qnnsweep.conf.models import DataConfig, ModelConfig
from qnnsweep.flows.cells.cases import BATCH, case_options
from qnnsweep.flows.cells.resources import prepare
from qnnsweep.tasks.atlas.list_cases import list_cases
from qnnsweep.tasks.atlas.try_cases import try_cases
from qnnsweep.tasks.records import CaseOutcome, OperatorCases
from tests.atlas.planted_cases import FAULTS

EXPECTED = {
    "none": ("exact", "compare"),
    "abort_in_export": ("aborted", "export"),
    "hang_in_export": ("aborted", "lower"),
    "raise_in_export": ("not_exported", "export"),
    "abort_in_lower": ("aborted", "lower"),
    "raise_in_lower": ("refused", "lower"),
}
"""Per fault, the state of its case and the stage that the outcome names."""
DEADLINE_S = 30


def outcomes(faults: Sequence[str], folder: str) -> list[CaseOutcome]:
    """Try a case per fault, in batches, two at a time. Return the outcomes in the order of the faults."""
    words = [f"artifacts={folder}", f"limits.child_deadline_s={DEADLINE_S}", "limits.parallel=2", "scheme=8a8w"]
    plan = planned(atlas_overrides(words), ())
    ask, resources = plan.cells[0].request, prepare(plan)
    tools = {"store": resources.store, "workers": resources.workers}
    samples = DataConfig(source="tests.atlas.planted_cases:inputs", count=1)
    model = ModelConfig(
        name="planted",
        factory="tests.atlas.planted_cases:case",
        cases="tests.atlas.planted_cases:cases",
        arguments={"faults": [*faults]},
        calibration=samples,
        evaluation=samples,
    )
    cases = list_cases(model, "", **tools).cases
    batches = [OperatorCases(cases=cases[start : start + BATCH]) for start in range(0, len(cases), BATCH)]

    def tried(batch: OperatorCases) -> Sequence[CaseOutcome]:
        options = case_options(replace(ask, model=model), resources.workers.identity)
        return try_cases(batch, options, "", **tools).outcomes

    with ThreadPoolExecutor(2) as pool:
        return [outcome for part in pool.map(tried, batches) for outcome in part]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python benchmarks/isolation.py", description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    chance = random.Random(options.seed)  # noqa: S311 - no secret
    planted = [FAULTS[number % len(FAULTS)] for number in range(options.cases // 10)]
    faults = planted + ["none"] * (options.cases - len(planted))
    chance.shuffle(faults)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tried = outcomes(faults, folder)
    wrong = [
        (fault, outcome)
        for fault, outcome in zip(faults, tried, strict=True)
        if (outcome.state, outcome.stage) != EXPECTED[fault]
    ]
    for fault, outcome in wrong:
        print(f"{outcome.case}: {outcome.state} in {outcome.stage} instead of {EXPECTED[fault]}: {outcome.why}")
    counts = Counter(outcome.state for outcome in tried)
    print(f"{len(tried)} cases, {len(planted)} with a fault: {dict(counts)}")
    print(f"{len(wrong)} have another outcome than expected; {time.monotonic() - start:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
