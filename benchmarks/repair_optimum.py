"""Whether `qnnsweep repair` finds the best scheme under a mean number of bits per weight.

    python benchmarks/repair_optimum.py                          three networks with six layers, 50 seeds each
    python benchmarks/repair_optimum.py chain --seeds 4 --json

Every network is repaired with `target.effective_bits`. Then every choice of 4, 8 or 16 bits for each of its weights is
computed that has at most as many bits, with all other settings of the repaired scheme. The mean SNR of the rung
`designed` over the samples of the search judges them all, the repaired scheme too. A repair is right if none has 0.5 dB
more. `repair_choices` computes the choices. The best one and the repaired one are quantized as well, with equal noise.

- `networks`: the number of repaired networks
- `right`: the part of these for which the repair is right
- `largest_loss_db`: by how much the best choice is better, at most
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from cells import MODELS

from qnnsweep.flows.server.settings import configure_prefect

if TYPE_CHECKING:
    from qnnsweep.conf.schemes import SchemeConfig

_CLOSE_DB = 0.5
_EQUAL_DB = 0.01
"""Equal programs differ by less: another process can add float32 numbers in another order, which changes some codes."""
_BITS = (4, 8, 16)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """A repaired network, and the best of all choices."""

    network: str
    seed: int
    effective_bits: float
    repaired: tuple[int, ...]
    """The bits of the weights, in the order of the layers."""
    repaired_db: float
    is_allowed: bool
    """Whether the repaired network has at most as many bits as the target says."""
    best: tuple[int, ...]
    best_db: float
    choices: int
    compilations: int

    @property
    def is_right(self) -> bool:
        return self.is_allowed and self.best_db - self.repaired_db <= _CLOSE_DB


def compared(network: str, seed: int, bits: float, artifacts: str) -> Compared:
    """Repair a network, and compute the noise of all choices."""
    import repair_choices

    from qnnsweep.conf.load import load
    from qnnsweep.conf.repair_plan import planned
    from qnnsweep.flows.cells.resources import prepare
    from qnnsweep.flows.repair import run_repair
    from qnnsweep.tasks.numerics.noise import decibels
    from qnnsweep.tasks.records import WeightBits
    from qnnsweep.tasks.repair.allocation import effective_bits, settings_of_bits
    from qnnsweep.tasks.repair.facts import operator_facts
    from qnnsweep.tasks.repair.prediction import LOWEST
    from qnnsweep.tasks.repair.schemes import with_settings
    from qnnsweep.tasks.toolchain import entrypoints

    words = [f"model={network}", f"model.arguments.seed={seed}", "scheme=16a8w", "soc=SM8650"]
    words += [
        f"target.effective_bits={bits}",
        "certificate.samples=1",
        "budget.compilations=6",
        "limits.child_deadline_s=60",  # QNN does not end for some blocks, and a program takes three seconds
        f"artifacts={artifacts}",
    ]
    result = run_repair(planned(words, [Path(MODELS)]), ["repair", *words])
    step = result.search.accepted
    (cell,) = step.complete
    assert cell.lowered is not None, result.search.reason
    assert cell.comparison is not None, result.search.reason
    facts = operator_facts(cell.comparison, cell.lowered)
    (method,) = cell.lowered.methods
    resources = prepare(load(words, config_dirs=[Path(MODELS)]))
    workers, store, kind = resources.workers, resources.store, cell.request.backend.kind
    count = len(result.search.samples)
    layers = [method.operators[weight.readers[0]].name for weight in method.weights]
    elements = [weight.elements for weight in method.weights]
    now = tuple(int(weight.element_bits) for weight in method.weights)

    def chosen(choice: Sequence[int]) -> SchemeConfig:
        bits_of = [WeightBits(operator=name, element_bits=one) for name, one in zip(layers, choice, strict=True)]
        return with_settings(step.scheme, dict(settings_of_bits(facts, bits_of, step.scheme).values()))

    def by_quantizer(choice: Sequence[int]) -> float:
        """Return the noise of a choice that the quantizer makes itself."""
        given = [method], None, step.scheme, chosen(choice), kind, cell.request.soc, LOWEST, math.inf, store
        noise, refused = workers.call("cure", entrypoints.try_scheme, *given).value  # math.inf: nothing is compiled
        assert refused is None, refused
        return fmean(noise[:count])

    allowed = [
        choice
        for choice in product(_BITS, repeat=len(layers))
        if sum(map(int.__mul__, choice, elements)) <= bits * sum(elements)
    ]
    choices = list(dict.fromkeys([*allowed, now]))
    schemes = [chosen([number] * len(layers)) for number in _BITS]
    numbers = [tuple(map(_BITS.index, choice)) for choice in choices]
    given = method, schemes, kind, layers, numbers, count, store
    of_samples = workers.call("choices", repair_choices.noise_of_choices, *given).value
    noise = dict(zip(choices, map(fmean, of_samples), strict=True))
    best = min(allowed, key=lambda choice: noise[choice])
    for choice in {now, best}:
        difference_db = decibels(by_quantizer(choice)) - decibels(noise[choice])
        assert abs(difference_db) < _EQUAL_DB, "another program than the quantizer's"
    return Compared(
        network=network,
        seed=seed,
        effective_bits=effective_bits(cell.lowered) or 0.0,
        repaired=now,
        repaired_db=decibels(noise[now]),
        best=best,
        best_db=decibels(noise[best]),
        is_allowed=now in allowed,
        choices=len(allowed),
        compilations=result.search.steps[-1].compilations,
    )


def _words(bits: Sequence[int]) -> str:
    return " ".join(map(str, bits))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["chain", "images", "tokens"], help="by default all three")
    parser.add_argument("--seeds", type=int, default=50, help="how many networks of each kind")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
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
        for seed, network in product(range(options.first, options.first + options.seeds), options.networks):
            run = flow(name="optimum benchmark", validate_parameters=False)(compared)
            row = run(network, seed, options.bits, options.artifacts or temporary)
            rows.append(row)
            print(
                f"{network} {seed}: {_words(row.repaired)} ({row.effective_bits:.2f} bits) {row.repaired_db:.2f} dB, "
                f"the best of {row.choices} is {_words(row.best)} with "
                f"{row.best_db:.2f} dB; {row.compilations} compilations",
                flush=True,
            )
    losses = [max(row.best_db - row.repaired_db, 0.0) for row in rows]
    summary = {
        "networks": len(rows),
        "right": sum(row.is_right for row in rows) / len(rows),
        "largest_loss_db": max(losses),
    }
    print(", ".join(f"{name} {value:.3g}" for name, value in summary.items()))
    if options.json:
        print(json.dumps(summary | {"rows": [asdict(row) for row in rows]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
