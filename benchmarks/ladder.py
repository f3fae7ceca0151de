"""The search for differences between a converted graph and its HTP program: the rungs and the Q/DQ pairs.

    python benchmarks/ladder.py                                  EfficientNet-Lite0, 8a8w, SM8650
    python benchmarks/ladder.py model=digits_cnn soc=SM8550      any quantized cell on QNN

Compiles and executes the cell and three variants of it. This takes about ten minutes for EfficientNet-Lite0, and five
more if no sweep has compiled the cell yet. The variants are always compiled, because torch.export.save is not
deterministic.
docs/ladder.md explains the output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from safetensors.numpy import load as load_tensors

from qnnsweep.flows.server.settings import configure_prefect
from qnnsweep.tasks.numerics.metrics import snr_db

if TYPE_CHECKING:
    from qnnsweep.conf.schema import Request
    from qnnsweep.flows.cells.resources import Resources
    from qnnsweep.tasks.records import Blob, Capture, LoweredProgram, QuantizedModel
    from qnnsweep.tasks.storage.store import Store

CELL = {"model": "efficientnet_lite0", "scheme": "8a8w", "soc": "SM8650"}
Scores = Sequence[float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Executed:
    """A converted graph, lowered and executed."""

    quantized: QuantizedModel
    lowered: LoweredProgram
    capture: Capture


class Bench:
    """The stages of one cell, cached as in a sweep, for any converted graph."""

    def __init__(self, request: Request, resources: Resources) -> None:
        self._request = request
        self._resources = resources

    def quantized(self) -> QuantizedModel:
        from qnnsweep.tasks.export import export_task
        from qnnsweep.tasks.quantize import quantize_task
        from qnnsweep.tasks.toolchain.source_digest import code_digest

        ask, workers = self._request, self._resources.workers
        exported = self._run(export_task, ask.model, code_digest(ask.model), workers=workers)
        return self._run(quantize_task, exported, ask.scheme, ask.backend.kind, ask.soc.arch, workers=workers)

    def executed(self, quantized: QuantizedModel, *, dump: bool, samples: int = 1) -> Executed:
        from qnnsweep.flows.cells.graph import lowering_options
        from qnnsweep.tasks.bundle import bundle_task
        from qnnsweep.tasks.lower import lower_task
        from qnnsweep.tasks.measure import measure_task

        ask, workers = self._request, self._resources.workers
        options = replace(lowering_options(ask), operator_samples=samples, dump_operators=dump)
        lowered = self._run(lower_task, quantized, ask.soc, options, workers=workers)
        bundle = self._run(bundle_task, lowered, ask.measure)
        capture = self._run(measure_task, bundle, (ask.device,), ask.soc, farm=self._resources.farm)
        return Executed(quantized=quantized, lowered=lowered, capture=capture)

    def _run(self, task: Any, *key_inputs: Any, **resources: Any) -> Any:
        return self._configure_task(task)(*key_inputs, store=self._resources.store, **resources)

    def _configure_task(self, task: Any) -> Any:
        from qnnsweep.tasks.stage import configure_task

        def on_change(state: str) -> None:
            print(f"{task.name} {state}", file=sys.stderr)

        return configure_task(task, task.name, store=self._resources.store, on_change=on_change)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="one quantized cell on QNN, in the grammar of `qnnsweep run`")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line")
    options = parser.parse_args()
    configure_prefect()
    from qnnsweep.flows.server import connect

    connect.ensure()
    from prefect import flow

    keys = {override.partition("=")[0] for override in options.overrides}
    overrides = [f"{key}={value}" for key, value in CELL.items() if key not in keys]
    result = flow(name="ladder", validate_parameters=False)(measure)([*overrides, *options.overrides])
    show(result)
    if options.json:
        print(json.dumps(result))
    return 0


def measure(overrides: list[str]) -> dict[str, Any]:
    """Return all measurements as plain values."""
    import pairs
    import replay

    from qnnsweep.conf.load import load
    from qnnsweep.flows.cells.resources import prepare

    plan = load(overrides)
    (cell,) = plan.cells
    resources = prepare(plan)
    store, workers = resources.store, resources.workers
    bench = Bench(cell.request, resources)
    executed = bench.executed(bench.quantized(), dump=True)
    ablation: pairs.Ablation = workers.call("ablate", pairs.ablate, executed.quantized.methods[0], store).value
    replayed = workers.call(
        "replay", replay.replay, executed.lowered.methods[0], executed.capture.methods[0], store
    ).value
    (method,) = executed.lowered.methods
    exported = method.exported
    eager = load_tensors(store.read(exported.outputs_eager))
    assert method.outputs_designed is not None, method.designed_unavailable
    assert method.outputs_lowered is not None, method.lowered_note
    designed = load_tensors(store.read(method.outputs_designed))

    variants = {
        "as converted": (ablation.graphs["converted"], _scores(store, executed.capture.methods[0].outputs, eager))
    }
    for name in pairs.VARIANTS:
        changed = workers.call("variant", pairs.variant, executed.quantized, name, store).value
        device = bench.executed(changed, dump=False).capture.methods[0].outputs
        host = _scores(store, changed.methods[0].outputs_quantized, eager)
        variants[name] = (host, _scores(store, device, eager))

    device = load_tensors(store.read(executed.capture.methods[0].outputs))
    predicted, actual = _median(ablation.graphs["without fused pairs"]), _median(variants["as converted"][1])
    return {
        "cell": cell.request.names,
        "samples": exported.sample_names,
        "rungs": {
            "exported": ablation.graphs["exported"],
            "lowered": _scores(store, method.outputs_lowered, eager),
            "edge": _scores(store, method.outputs_edge, eager),
            "designed": _scores_of(designed, eager),
            "device": variants["as converted"][1],
            "beside the path: quantized": ablation.graphs["converted"],
        },
        "graphs": ablation.graphs,
        "device_against_designed": _scores_of(device, designed),
        "device_against": {name: _scores(store, blob, device) for name, blob in ablation.outputs.items()},
        "edge_against_no_pair": _scores(
            store, method.outputs_edge, load_tensors(store.read(ablation.outputs["without any pair"]))
        ),
        "pairs": ablation.counts,
        "without": ablation.without,
        "only": ablation.only,
        "each": [asdict(pair) for pair in ablation.pairs],
        "replayed": [asdict(pair) for pair in replayed],
        "variants": {name: {"host": host, "device": device} for name, (host, device) in variants.items()},
        "predicted_snr_db": predicted,
        "device_snr_db": actual,
        "converted_snr_db": _median(ablation.graphs["converted"]),
        "ratio": predicted / actual,
    }


def _scores(store: Store, blob: Blob, reference: Mapping[str, Any]) -> Scores:
    """Return, per sample, the SNR in dB of the worst output; None if all outputs equal the reference."""
    return _scores_of(load_tensors(store.read(blob)), reference)


def _scores_of(actual: Mapping[str, Any], reference: Mapping[str, Any]) -> Scores:
    by_sample: dict[str, list[float]] = {}
    for key, value in reference.items():
        ratio = snr_db(actual[key], value)
        by_sample.setdefault(key.partition("/")[0], []).extend([] if ratio is None else [ratio])
    return [min(by_sample[sample], default=None) for sample in sorted(by_sample, key=int)]


def _median(scores: Scores) -> float:
    return statistics.median(float("inf") if score is None else score for score in scores)


def show(result: Mapping[str, Any]) -> None:
    print(f"\n{' · '.join(result['cell'])}: SNR in dB of the final output, one column per sample, the median last")
    print(f"{'':42}{''.join(f'{name[:9]:>10}' for name in result['samples'])}    median")
    for title, lines in (
        ("rungs, against eager fp32", result["rungs"]),
        ("the device, against the rung designed", {"device": result["device_against_designed"]}),
        ("graphs on the host, against eager fp32", result["graphs"]),
        ("the host's graphs, against the device", result["device_against"]),
        ("edge, against the converted graph", {"without any pair": result["edge_against_no_pair"]}),
    ):
        print(f"\n{title}")
        for name, scores in lines.items():
            print(_line(name, scores))
    print("\nwithout one kind of pair, against eager fp32")
    for kind, count in result["pairs"].items():
        print(_line(f"{count:3} {kind}", result["without"][kind]))
    print("\nwith one kind of pair alone, against eager fp32")
    for kind, count in result["pairs"].items():
        print(_line(f"{count:3} {kind}", result["only"][kind]))
    print("\nconverted graphs and their HTP programs, against eager fp32")
    for name, scores in result["variants"].items():
        print(_line(f"{name}: host", scores["host"]))
        print(_line(f"{name}: device", scores["device"]))
    print(f"\n{'one fused pair alone':32}    scale  levels    median dB")
    for pair in result["each"][:5]:
        print(f"{pair['module_path']:32} {pair['scale']:8.4f} {pair['levels']:7.1f} {_median(pair['snr_db']):12.2f}")
    rows = result["replayed"]
    print(f"\nfused pairs replayed on the device's own inputs: {len(rows)}, median (least to most)")
    for key in ("codes_device", "codes_converted", "equal_fused", "equal_apart"):
        values = [row[key] for row in rows]
        print(f"{key:20} {statistics.median(values):8.3f}   ({min(values):.3f} to {max(values):.3f})")
    for key in ("off_by_more_than_one", "of_lowest_bias"):
        print(f"{key:20} {sum(row[key] for row in rows):8} elements")
    print(
        f"\npredicted from the graph without fused pairs: {result['predicted_snr_db']:.2f} dB, "
        f"device: {result['device_snr_db']:.2f} dB, converted: {result['converted_snr_db']:.2f} dB"
    )


def _line(name: str, scores: Scores) -> str:
    columns = "".join("     equal" if score is None else f"{score:10.2f}" for score in [*scores, _median(scores)])
    return f"{name:42}{columns}"


if __name__ == "__main__":
    sys.exit(main())
