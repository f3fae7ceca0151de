"""The best accuracy under a limit of the program's size: `qnnsweep repair`, compared with what others do.

    python benchmarks/repair.py                                   all models
    python benchmarks/repair.py minilm_l6 --growth 0.05           one model, a program that is 5 % larger at most
    python benchmarks/repair.py digits_cnn --soc SM8550 --json

- repair      `qnnsweep repair` with `target.size_kib`
- cumulative  16 bits for layers in the order of the SNR of their results, as ExecuTorch's mix_precision_analyzer
- alone       the same, in the order of phase 1 of AIMET's AMP
- kl          the same, in the order of the score `kl_div` of NVIDIA ModelOpt
- gradient    the same, in the order of the score `gradient` of NVIDIA ModelOpt
- random      the same, in a random order
- samples     no layer; the ranges are those of `--calibration` samples, or of as many as the model has
- activations the whole scheme with 16-bit activations or, if it has them, with 16-bit weights, whatever its size is

The first layers of an order are raised, as many as their weights say that there is space for. If the program is too
large all the same, half of them are, and so on. `repair_rankings` computes the orders on the host. Every choice is
quantized, compiled and executed. All programs come from the cache if the command is repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnsweep.conf.units import KIB
from qnnsweep.flows.server.settings import configure_prefect

if TYPE_CHECKING:
    from qnnsweep.conf.plan import Plan
    from qnnsweep.conf.schemes import SchemeConfig
    from qnnsweep.flows.cells.resources import Resources
    from qnnsweep.tasks.repair.facts import OperatorFacts
    from qnnsweep.tasks.repair.schemes import Selector, Settings
    from qnnsweep.tasks.results.outcome import CellResult

MODELS = {
    "mobilenet_v3_large": "8a8w",
    "efficientnet_lite0": "8a8w",
    "minilm_l6": "16a8w",
    "digits_cnn": "8a8w",
    "silero_step": "16a8w",
}
"""The models and the schemes before the change. MiniLM and silero-vad have no useful outputs with 8-bit activations."""
FOLDER = Path(__file__).parent / "repair_models"
WIDER = {"8a8w": "16a8w", "16a8w": "16a16w"}
"""Per scheme, the one with more bits for the whole model."""
SEED = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A layer that can be raised to 16 bits."""

    node: str
    module_path: str
    settings: Mapping[Selector, Settings]
    """The new settings by selector, of the layer and of the clamp that is merged with it."""
    more_bytes: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS), help="models, by default all of the benchmark")
    parser.add_argument("--growth", type=float, default=0.1, help="by how much the program may grow, as a part of it")
    parser.add_argument("--compilations", type=int, default=8, help="those of the repair")
    parser.add_argument("--calibration", type=int, default=256, help="the samples of the choice `samples`")
    parser.add_argument("--samples", type=int, help="evaluation samples, by default those of the model's file")
    parser.add_argument("--soc", default="SM8650")
    parser.add_argument("--artifacts", default="artifacts", help="the folder of the cache")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line")
    options = parser.parse_args()
    configure_prefect()
    from qnnsweep.flows.server import connect

    connect.ensure()
    from prefect import flow

    measured: dict[str, Any] = {}
    for model in options.models:
        overrides = [f"model={model}", f"scheme={MODELS.get(model, '8a8w')}", f"soc={options.soc}"]
        overrides += [f"artifacts={options.artifacts}", "reuse=capture"]
        overrides += [] if options.samples is None else [f"model.evaluation.count={options.samples}"]
        run = flow(name="repair benchmark", validate_parameters=False)(measure)
        measured[model] = run(overrides, options.growth, options.compilations, options.calibration)
        show(model, measured[model])
    if options.json:
        print(json.dumps(measured))
    return 0


def measure(overrides: list[str], growth: float, compilations: int, calibration: int) -> dict[str, Any]:
    """Return the measurements of one model as plain values."""
    import repair_rankings

    from qnnsweep.conf.load import load
    from qnnsweep.flows.cells.resources import prepare

    plan = load(overrides, config_dirs=[FOLDER])
    (cell,) = plan.cells
    resources = prepare(plan)
    scheme, kind = cell.request.scheme, cell.request.backend.kind
    before = measured(plan, resources, scheme, dump=True)
    assert before.exported is not None
    size = size_of(before)
    most = int(size * (1 + growth)) // KIB * KIB
    rows: list[dict[str, Any]] = []

    def add(
        choice: str, result: CellResult, layers: Sequence[str] = (), seconds: float = 0.0, programs: int = 1
    ) -> None:
        row = {"choice": choice, **facts(result), "layers": [*layers], "compilations": programs}
        rows.append(row | {"seconds": row["seconds"] + seconds, "size_ratio": row["size_bytes"] / size})
        print(rows[-1], file=sys.stderr)

    def add_order(choice: str, order: Sequence[Layer], seconds: float) -> None:
        *larger, (result, chosen) = until_it_fits(plan, resources, scheme, order, size, most)
        seconds += sum(seconds_of(cell) for cell, _ in larger)
        add(choice, result, [layer.module_path or layer.node for layer in chosen], seconds, 1 + len(larger))

    add("before", before)
    started = time.perf_counter()
    repaired, programs = repair(overrides, most // KIB, compilations)
    add("repair", repaired, (), time.perf_counter() - started, programs)
    layers = layers_of(before, scheme)
    given = before.exported.methods[0], scheme, kind, tuple(layers), resources.store
    classifier = bool(cell.request.model.classifier)
    orders = resources.workers.call("rankings", repair_rankings.rankings, *given, classifier).value
    for choice, order in orders.items():
        add_order(choice, [layers[node] for node in order.nodes], order.seconds)
    add_order("random", [layers[str(node)] for node in np.random.default_rng(SEED).permutation(sorted(layers))], 0.0)
    more = load([*overrides, f"model.calibration.count={calibration}"], config_dirs=[FOLDER])
    add("samples", measured(more, prepare(more), replace(scheme, calibration_samples=calibration), dump=False))
    wide = [word for word in overrides if not word.startswith("scheme=")]
    wider = load([*wide, f"scheme={WIDER[scheme.quant_dtype or '']}"], config_dirs=[FOLDER])
    add("activations", measured(wider, prepare(wider), wider.cells[0].request.scheme, dump=False))
    return {"cell": cell.request.names, "layers": len(layers), "growth": growth, "rows": rows}


def repair(overrides: Sequence[str], size_kib: int, compilations: int) -> tuple[CellResult, int]:
    """Return the cell with the best accuracy that a repair finds under a size, and the number of compiled programs."""
    from qnnsweep.conf.repair_plan import planned
    from qnnsweep.flows.repair import run_repair

    words = [*overrides, f"target.size_kib={size_kib}", f"budget.compilations={compilations}", "certificate.samples=1"]
    result = run_repair(planned(words, [FOLDER]), ["repair", *words])
    (cell,) = result.search.accepted.cells
    return cell, result.search.steps[-1].compilations


def until_it_fits(
    plan: Plan, resources: Resources, scheme: SchemeConfig, order: Sequence[Layer], size: int, most: int
) -> Iterator[tuple[CellResult, Sequence[Layer]]]:
    """Yield the cell with the first layers of an order that have space, and these layers; then with half of them.

    The last of these cells, and no other, is small enough, or has no layer left.
    """
    chosen = first_that_fit(order, most - size)
    while True:
        result = measured(plan, resources, raised(scheme, chosen), dump=False)
        yield result, chosen
        if size_of(result) <= most or not chosen:
            return
        chosen = chosen[: len(chosen) // 2]


def measured(plan: Plan, resources: Resources, scheme: SchemeConfig, *, dump: bool) -> CellResult:
    """Return the only cell of a plan, with another scheme. Without `dump`, only the final outputs are compared."""
    from qnnsweep.conf.plan import PlannedCell
    from qnnsweep.flows.session import Session

    (cell,) = plan.cells
    measure = replace(cell.request.measure, dump_operators=dump)
    request = replace(cell.request, scheme=scheme, measure=measure)
    session = Session(plan, (), resources=resources)
    (result,) = session.measure([PlannedCell(request=request, impossible=None)])
    if result.error is not None:
        raise result.error
    print(f"{'·'.join(request.names)} {len(scheme.overrides)} overrides: {facts(result)}", file=sys.stderr)
    return result


def layers_of(cell: CellResult, scheme: SchemeConfig) -> dict[str, Layer]:
    """Return the convolutions and linear layers whose weights can have 16 bits, by the names of their nodes.

    Of the other operators that read constants, ExecuTorch quantizes not all.
    """
    from qnnsweep.tasks.repair.facts import operator_facts
    from qnnsweep.tasks.repair.families import FAMILIES, merged_settings
    from qnnsweep.tasks.toolchain.reference.graph import WITH_WEIGHT

    comparison, lowered = cell.comparison, cell.lowered
    assert comparison is not None
    assert lowered is not None
    (family,) = (family for family in FAMILIES if family.change == "16-bit weights" and "weights" in family.causes)
    by_index = {operator.operator.index: operator for operator in operator_facts(comparison, lowered).values()}
    offers: list[tuple[OperatorFacts, Any]] = [
        (operator, family.offer(operator, scheme)) for operator in by_index.values()
    ]

    def merged(operator: OperatorFacts, settings: Settings) -> dict[Selector, Settings]:
        others = [by_index[index] for index in operator.merged_with]
        needed = {other.selector: merged_settings(other, settings, scheme) for other in others}
        return {selector: values for selector, values in needed.items() if selector is not None and values is not None}

    return {
        operator.selector.name: Layer(
            node=operator.selector.name,
            module_path=operator.operator.module_path,
            settings=merged(operator, offer) | {operator.selector: offer},
            more_bytes=operator.weights,
        )
        for operator, offer in offers
        if offer is not None and operator.selector is not None and operator.operator.target in WITH_WEIGHT
    }


def first_that_fit(order: Sequence[Layer], more_bytes: int) -> list[Layer]:
    """Return the first layers of an order, without those for which there is no space."""
    chosen: list[Layer] = []
    for layer in order:
        if layer.more_bytes + sum(other.more_bytes for other in chosen) <= more_bytes:
            chosen.append(layer)
    return chosen


def size_of(cell: CellResult) -> int:
    assert cell.lowered is not None
    return cell.lowered.program.size


def raised(scheme: SchemeConfig, layers: Sequence[Layer]) -> SchemeConfig:
    from qnnsweep.tasks.repair.schemes import with_settings

    return with_settings(scheme, {selector: values for layer in layers for selector, values in layer.settings.items()})


def seconds_of(cell: CellResult) -> float:
    """Return the time to quantize and to compile. A result from the cache has the time that it took."""
    return (
        sum(call.seconds for call in cell.lowered.made if call.stage in ("quantize", "lower")) if cell.lowered else 0.0
    )


def facts(cell: CellResult) -> dict[str, Any]:
    from qnnsweep.tasks.results.repair import measurement

    measured = measurement(cell)
    assert measured is not None
    return {
        "lowest_snr_db": measured.finals.final_snr_db,
        "mean_snr_db": measured.finals.mean_snr_db,
        "size_bytes": measured.size_bytes,
        "seconds": seconds_of(cell),
    }


def show(model: str, result: Mapping[str, Any]) -> None:
    cell = " · ".join(result["cell"])
    print(f"\n{model}: {cell}; {result['layers']} layers; a program that is {result['growth']:.0%} larger at most")
    print(f"{'choice':12}{'lowest dB':>10}{'mean dB':>10}{'size':>8}{'programs':>10}{'s':>7}   layers")
    for row in result["rows"]:
        print(
            f"{row['choice']:12}{_number(row['lowest_snr_db']):>10}{_number(row['mean_snr_db']):>10}"
            f"{row['size_ratio']:>8.3f}{row['compilations']:>10}{row['seconds']:>7.0f}   {len(row['layers']) or ''}"
        )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


if __name__ == "__main__":
    sys.exit(main())
