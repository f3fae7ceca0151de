"""What the tests ask of benchmarks/pairs.py in a worker process: this process never imports ExecuTorch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from qnnsweep.tasks.records import QuantizedModel
from qnnsweep.tasks.storage.store import Store

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
if BENCHMARKS not in sys.path:
    sys.path.append(BENCHMARKS)


def ablate(quantized: QuantizedModel, store: Store) -> dict[str, Any]:
    import pairs

    ablation = pairs.ablate(quantized.methods[0], store)
    fused = {pair.module_path: pair.levels for pair in ablation.pairs}
    return {"counts": ablation.counts, "graphs": ablation.graphs, "outputs": ablation.outputs, "fused": fused}


def variant(quantized: QuantizedModel, name: str, store: Store) -> QuantizedModel:
    import pairs

    return pairs.variant(quantized, name, store)
