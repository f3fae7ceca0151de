"""Which operators should get 16 bits: the choice of `qnnsweep repair`, compared with three others.

    python benchmarks/repair.py                                   all models
    python benchmarks/repair.py minilm_l6 --count 8               one model, 8 operators
    python benchmarks/repair.py digits_cnn --soc SM8550 --json

Of each model, the same number of layers is raised to 16-bit weights and activations. No choice may enlarge the program
by more than `--growth` times: a layer for which there is no space is left out. The layers are chosen by

- budget      the error budget of the program on the device, as `qnnsweep repair` does
- cumulative  the SNR of each layer's result in the converted graph, as ExecuTorch's mix_precision_analyzer does
- alone       the SNR of the final outputs if only this layer is quantized, as phase 1 of AIMET's AMP does
- random      a random order

Every choice is quantized, compiled and executed. All programs come from the cache if the command is repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnsweep.flows.server.settings import configure_prefect

if TYPE_CHECKING:
    from qnnsweep.conf.plan import Plan
    from qnnsweep.conf.schemes import SchemeConfig
    from qnnsweep.flows.cells.resources import Resources
    from qnnsweep.tasks.repair.facts import OperatorFacts
    from qnnsweep.tasks.repair.schemes import Selector, Settings
    from qnnsweep.tasks.results.outcome import CellResult

MODELS = {"mobilenet_v3_large": "8a8w", "efficientnet_lite0": "8a8w", "minilm_l6": "16a8w"}
"""The models and the schemes before the change. MiniLM has no useful outputs with 8-bit activations."""
SEED = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A layer that can be raised to 16 bits."""

    node: str
    module_path: str
    settings: Mapping[Selector, Settings]
    """The new settings by selector, of the layer and of the clamp that is merged with it."""
    more_bytes: int
    share: float
    """The energy of the final output's error that the rounding of the layer's weights causes."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS), help="models, by default all of the benchmark")
    parser.add_argument("--count", type=int, default=8, help="how many layers are raised")
    parser.add_argument("--growth", type=float, default=0.1, help="by how much the program may grow, as a part of it")
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
        measured[model] = run(overrides, options.count, options.growth)
        show(model, measured[model])
    if options.json:
        print(json.dumps(measured))
    return 0


def measure(overrides: list[str], count: int, growth: float) -> dict[str, Any]:
    """Return the measurements of one model as plain values."""
    import repair_rankings

    from qnnsweep.conf.load import load
    from qnnsweep.flows.cells.resources import prepare

    plan = load(overrides)
    (cell,) = plan.cells
    resources = prepare(plan)
    scheme, kind = cell.request.scheme, cell.request.backend.kind
    before = measured(plan, resources, scheme, dump=True)
    layers, size = layers_of(before, scheme), before.lowered.program.size  # type: ignore[union-attr]
    model = before.exported.methods[0]  # type: ignore[union-attr]
    hosts = resources.workers.call(
        "rankings", repair_rankings.rankings, model, scheme, kind, tuple(layers), resources.store
    ).value
    orders: dict[str, tuple[Sequence[str], float, int]] = {
        "budget": (sorted(layers, key=lambda name: -layers[name].share), seconds_of(before), 2),
        "cumulative": (hosts["cumulative"].nodes, hosts["cumulative"].seconds, 1),
        "alone": (hosts["alone"].nodes, hosts["alone"].seconds, 1),
        "random": ([str(node) for node in np.random.default_rng(SEED).permutation(sorted(layers))], 0.0, 1),
    }
    rows = [{"choice": "before", **facts(before), "size_ratio": 1.0, "layers": []}]
    for choice, (order, seconds, compilations) in orders.items():
        chosen = first_that_fit(order, layers, count, growth * size)
        after = measured(plan, resources, raised(scheme, chosen), dump=False)
        row = {"choice": choice, **facts(after), "layers": [layer.module_path or layer.node for layer in chosen]}
        row |= {"seconds": seconds + row["seconds"], "compilations": compilations}
        rows.append(row | {"size_ratio": row["size_bytes"] / size})
    return {"cell": cell.request.names, "layers": len(layers), "count": count, "growth": growth, "rows": rows}


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
    """Return the layers whose weights can have 16 bits, by the names of their nodes."""
    from qnnsweep.tasks.numerics.reported import reported_budget
    from qnnsweep.tasks.repair.candidates import energies
    from qnnsweep.tasks.repair.facts import operator_facts
    from qnnsweep.tasks.repair.families import FAMILIES, merged_settings

    comparison, lowered = cell.comparison, cell.lowered
    assert comparison is not None
    assert lowered is not None
    parts = energies(reported_budget(comparison))
    (family,) = (family for family in FAMILIES if family.change == "16-bit weights")
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
            share=parts.get(("weights", operator.operator.name), 0.0),
        )
        for operator, offer in offers
        if offer is not None and operator.selector is not None
    }


def first_that_fit(order: Sequence[str], layers: Mapping[str, Layer], count: int, most_bytes: float) -> list[Layer]:
    """Return the first layers of an order, without those for which there is no space."""
    chosen: list[Layer] = []
    for node in order:
        more_bytes = layers[node].more_bytes + sum(layer.more_bytes for layer in chosen)
        if len(chosen) < count and more_bytes <= most_bytes:
            chosen.append(layers[node])
    return chosen


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
        "compilations": 1,
    }


def show(model: str, result: Mapping[str, Any]) -> None:
    cell, count = " · ".join(result["cell"]), result["count"]
    print(f"\n{model}: {cell}; {count} of {result['layers']} layers raised to 16 bits")
    print(f"{'choice':12}{'lowest dB':>10}{'mean dB':>10}{'size':>8}{'programs':>10}{'s':>7}   layers")
    for row in result["rows"]:
        print(
            f"{row['choice']:12}{_number(row['lowest_snr_db']):>10}{_number(row['mean_snr_db']):>10}"
            f"{row['size_ratio']:>8.3f}{row['compilations']:>10}{row['seconds']:>7.0f}   {', '.join(row['layers'])}"
        )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


if __name__ == "__main__":
    sys.exit(main())
