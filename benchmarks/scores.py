"""The search for differences between the design of MiniLM-L6 16a8w and its HTP program.

    python benchmarks/scores.py

Compiles and executes the cell (SM8650) and two variants with other grids for the attention scores. This takes about
ten minutes. docs/ladder.md explains the output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from qnnsweep.flows.server.settings import configure_prefect

CELL = ["model=minilm_l6", "scheme=16a8w", "soc=SM8650"]
Scores = Sequence[float | None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line")
    options = parser.parse_args()
    configure_prefect()
    from qnnsweep.flows.server import connect

    connect.ensure()
    from prefect import flow

    result = flow(name="scores", validate_parameters=False)(measure)()
    for name, study in result.items():
        show(name, study)
    if options.json:
        print(json.dumps(result))
    return 0


def measure() -> dict[str, Any]:
    """Return all measurements as plain values."""
    import ladder
    import score_grids
    import score_study

    from qnnsweep.conf.load import load
    from qnnsweep.flows.cells.resources import prepare

    plan = load(CELL)
    (cell,) = plan.cells
    resources = prepare(plan)
    store, workers = resources.store, resources.workers
    bench = ladder.Bench(cell.request, resources)
    converted = bench.quantized()
    graphs = {"as converted": converted}
    for name in score_grids.VARIANTS:
        graphs[name] = workers.call("variant", score_grids.variant, converted, name, store).value
    studies: dict[str, Any] = {}
    for name, quantized in graphs.items():
        executed = bench.executed(quantized, dump=True, samples=len(converted.methods[0].exported.sample_names))
        work = executed.lowered.methods[0], executed.capture.methods[0], store
        studies[name] = asdict(workers.call("study", score_study.study, *work).value)
    return studies


def show(name: str, study: Mapping[str, Any]) -> None:
    print(f"\n\n{name}: SNR in dB of the final output, median, minimum and maximum over the samples")
    for title, key in (
        ("against eager fp32", "against_eager"),
        ("graphs on the host, against the device", "against_device"),
        ("the design with noise before the first norm, against the design, one row per level", "noise"),
        ("the design with the device's own errors of one kind of operators, against the design", "alone"),
    ):
        print(f"\n{title}")
        for row, scores in study[key].items():
            print(_line(row, scores))
    print(
        "\non the device's own inputs: the device's results minus exact rounding, and minus HTP's arithmetic, in steps"
    )
    print(f"{'':12}{'operators':>10}{'elements':>10}{'equal':>10}{'largest':>9}{'mean':>9}{'equal':>12}{'largest':>9}")
    for kind, row in study["replayed"].items():
        line = f"{kind:12}{row['operators']:10}{row['elements']:10}{row['equal']:10.2%}{row['largest']:9.0f}"
        htp = "" if row["equal_htp"] is None else f"{row['equal_htp']:12.3%}{row['largest_htp']:9.0f}"
        print(f"{line}{row['mean']:+9.3f}{htp}")
    print("\nadditions of the mask: elements unlike the design, and unlike exact rounding on the device's own inputs")
    for row in study["additions"]:
        shares = "".join(f"{row[key] / row['elements']:9.2%}" for key in ("unlike_design", "unlike_exact_rounding"))
        print(f"step {row['step']:.6f}, multiplier {row['multiplier']:10.3f} / 32768{shares}")


def _line(name: str, scores: Scores) -> str:
    numbers = [float("inf") if score is None else score for score in scores]
    return f"{name:62}{statistics.median(numbers):8.2f}{min(numbers):8.2f}{max(numbers):8.2f}"


if __name__ == "__main__":
    sys.exit(main())
