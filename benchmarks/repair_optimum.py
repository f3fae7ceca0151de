"""Whether `qnnsweep repair` finds the best scheme under a mean number of bits per weight.

    python benchmarks/repair_optimum.py                          three networks with six layers, 50 seeds each
    python benchmarks/repair_optimum.py chain --seeds 4 --json

Every network is repaired with `target.effective_bits`. Then every choice of 4 or 8 bits for each of its weights is
tried that has at most as many bits, with all other settings of the repaired scheme. The mean SNR of the rung `designed`
over the samples of the search judges them all, the repaired scheme too. A repair is right if none has 0.5 dB more.

- `networks`: the number of repaired networks
- `right`: the part of these for which the repair is right
- `largest_loss_db`: by how much the best choice is better, at most
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from cells import MODELS

from qnnsweep.flows.server.settings import configure_prefect

if TYPE_CHECKING:
    from qnnsweep.conf.schemes import SchemeConfig
    from qnnsweep.tasks.records import LoweredMethod

_CLOSE_DB = 0.5
_BITS = (4, 8)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """A repaired network, and the best of all choices."""

    network: str
    seed: int
    effective_bits: float
    repaired: str
    """The bits of the weights, in the order of the layers."""
    repaired_db: float
    best: str
    best_db: float
    choices: int
    compilations: int


def compared(network: str, seed: int, bits: float, artifacts: str) -> Compared:
    """Repair a network, and try all choices."""
    from qnnsweep.conf.load import load
    from qnnsweep.conf.repair_plan import planned
    from qnnsweep.flows.cells.resources import prepare
    from qnnsweep.flows.repair import run_repair
    from qnnsweep.tasks.numerics.noise import decibels
    from qnnsweep.tasks.repair.allocation import effective_bits
    from qnnsweep.tasks.toolchain import entrypoints

    words = [f"model={network}", f"model.arguments.seed={seed}", "scheme=16a8w", "soc=SM8650"]
    words += [
        f"target.effective_bits={bits}",
        "certificate.samples=1",
        "budget.compilations=6",
        f"artifacts={artifacts}",
    ]
    result = run_repair(planned(words, [Path(MODELS)]), ["repair", *words])
    step = result.search.accepted
    (cell,) = step.complete
    assert cell.lowered is not None, result.search.reason
    (method,) = cell.lowered.methods
    resources = prepare(load(words, config_dirs=[Path(MODELS)]))
    workers, store, soc = resources.workers, resources.store, cell.request.soc

    def designed_db(scheme: SchemeConfig) -> float:
        given = [method], None, step.scheme, scheme, "qnn", soc, 0.0, store  # 0.0: nothing is compiled
        noise, refused = workers.call("cure", entrypoints.try_scheme, *given).value
        assert refused is None, refused
        return decibels(sum(noise[: len(result.search.samples)]) / len(result.search.samples))

    choices = dict(_choices(method, step.scheme, bits))
    with ThreadPoolExecutor(2) as pool:
        reached = dict(zip(choices, pool.map(designed_db, choices.values()), strict=True))
    best = max(reached, key=lambda choice: reached[choice])
    now = " ".join(f"{weight.element_bits:g}" for weight in method.weights)
    return Compared(
        network=network,
        seed=seed,
        effective_bits=effective_bits(cell.lowered) or 0.0,
        repaired=now,
        repaired_db=designed_db(step.scheme),
        best=best,
        best_db=reached[best],
        choices=len(choices),
        compilations=result.search.steps[-1].compilations,
    )


def _choices(method: LoweredMethod, scheme: SchemeConfig, most: float) -> Iterator[tuple[str, SchemeConfig]]:
    """Yield the schemes with at most so many bits per weight, by these bits."""
    from qnnsweep.tasks.repair.schemes import Selector, setting, with_settings

    nodes = [method.operators[weight.readers[0]].source_nodes[-1] for weight in method.weights]
    elements = [weight.elements for weight in method.weights]
    for bits in product(_BITS, repeat=len(nodes)):
        if sum(map(int.__mul__, bits, elements)) <= most * sum(elements):
            changes = {}
            for node, of_weight in zip(nodes, bits, strict=True):
                now = setting(scheme, Selector(node), "quant_dtype") or scheme.quant_dtype or ""
                dtype = f"{now.partition('a')[0]}a{of_weight}w"
                floor = {"least_weight_scale": None, "fit_weights": None} if now.endswith("16w") else {}
                new = {"quant_dtype": None if dtype == scheme.quant_dtype else dtype, "block_size": None}
                changes[Selector(node)] = new | floor
            yield " ".join(map(str, bits)), with_settings(scheme, changes)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["chain", "images", "tokens"], help="by default all three")
    parser.add_argument("--seeds", type=int, default=50, help="how many networks of each kind")
    parser.add_argument("--bits", type=float, default=6.0, help="the limit of the mean number of bits per weight")
    parser.add_argument("--artifacts", help="the folder of the cache; by default a temporary one")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line")
    options = parser.parse_args(arguments)
    configure_prefect()
    from qnnsweep.flows.server import connect

    connect.ensure()
    from prefect import flow

    rows: list[Compared] = []
    with tempfile.TemporaryDirectory() as temporary:
        for network, seed in product(options.networks, range(options.seeds)):
            run = flow(name="optimum benchmark", validate_parameters=False)(compared)
            row = run(network, seed, options.bits, options.artifacts or temporary)
            rows.append(row)
            print(
                f"{network} {seed}: {row.repaired} ({row.effective_bits:.2f} bits) {row.repaired_db:.2f} dB, "
                f"the best of {row.choices} is {row.best} with {row.best_db:.2f} dB; {row.compilations} compilations",
                flush=True,
            )
    losses = [max(row.best_db - row.repaired_db, 0.0) for row in rows]
    summary = {
        "networks": len(rows),
        "right": sum(loss <= _CLOSE_DB for loss in losses) / len(losses),
        "largest_loss_db": max(losses),
    }
    print(", ".join(f"{name} {value:.3g}" for name, value in summary.items()))
    if options.json:
        print(json.dumps(summary | {"rows": [asdict(row) for row in rows]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
