"""How often the forecast of `qnnsweep plan` agrees with the compiler: python benchmarks/forecast.py --artifacts FOLDER.

Reads the operator atlas in the folder. A fifth of its cases is held out, and each of them is predicted from the others.
This is repeated with other cases. The forecast of a case is that of its worst operator call.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.results.usability import (
    ATLAS_COLUMNS,
    USABILITY_OF_STATE,
    AtlasEvidence,
    Usability,
    place_of,
    worst,
)
from qnnsweep.tasks.storage.query import select
from qnnsweep.tasks.storage.store import Store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifacts", default="artifacts")
    parser.add_argument("--repetitions", type=int, default=20)
    arguments = parser.parse_args()
    rows = [
        row
        for row in select(Store.at(arguments.artifacts), "atlas", ATLAS_COLUMNS)
        if row["state"] in USABILITY_OF_STATE
    ]
    names = sorted({row["case"] for row in rows})
    pairs = Counter[tuple[str, str]]()
    for seed in range(arguments.repetitions):
        held_out = {*random.Random(seed).sample(names, len(names) // 5)}  # noqa: S311 - no secret
        evidence = AtlasEvidence(row for row in rows if row["case"] not in held_out)
        pairs.update(
            (by_compiler(USABILITY_OF_STATE[row["state"]]), by_compiler(predicted(row, evidence)))
            for row in rows
            if row["case"] in held_out and row["calls"]
        )
    total = pairs.total()
    agreeing = sum(count for (measured, forecast), count in pairs.items() if measured == forecast)
    usual = sum(count for (measured, _), count in pairs.items() if measured == "delegated")
    print(f"{len(rows)} cases of {len(names)} names, {arguments.repetitions} repetitions, {total} forecasts")
    print(f"forecast agrees with the compiler   {agreeing / total:.1%}")
    print(f"always forecasting `delegated`      {usual / total:.1%}")
    for (measured, forecast), count in pairs.most_common():
        print(f"{count / total:6.1%}  measured {measured:<10} forecast {forecast}")


def by_compiler(usability: Usability) -> Usability:
    """Return what the compiler does: it also compiles an operator that is wrong."""
    return "delegated" if usability == "wrong" else usability


def predicted(row: Row, evidence: AtlasEvidence) -> Usability:
    return worst(evidence.forecast(call, place_of(row)) for call in row["calls"])


if __name__ == "__main__":
    main()
