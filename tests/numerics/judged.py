"""The verdicts on the operators of a small program in NumPy, under the default tolerances of a scheme.

The verdicts are those of a comparison: from the replay, the total error over the used elements, and the tolerances of
`conf/tolerance/default.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.tolerances import OperatorTolerance
from qnnsweep.tasks.numerics.element_use import Array, CapturedValue
from qnnsweep.tasks.numerics.introduced import Introduced
from qnnsweep.tasks.numerics.operators import compare_values
from qnnsweep.tasks.numerics.replay import Replayed
from qnnsweep.tasks.numerics.verdict import has_own_error, limits, verdict
from qnnsweep.tasks.records import Gap
from qnnsweep.tasks.records.vocabulary import Cause, Verdict
from tests.numerics.numpy_device import replay
from tests.numerics.numpy_graph import Program

IMAGE = np.array([[-3.0, 1.5, 2.0, 7.0], [0.5, -0.25, 4.0, 8.5]], np.float32)
SCHEMES = ["8a8w", "16a8w", "fp16"]


def nearly(gap: Gap) -> dict[str, Any]:
    """Return the metrics of a gap, to be compared with metrics whose sums were added up in another order."""
    return {name: value if value is None else pytest.approx(value, rel=1e-9) for name, value in asdict(gap).items()}


@cache
def allowed(scheme: str, target: str = "aten.linear.default") -> OperatorTolerance:
    tolerances = load([f"scheme={scheme}"]).cells[0].request.tolerance.operators
    return limits(tolerances, scheme, target)


@dataclass(frozen=True)
class Judged:
    """The verdict on an operator, and the cause with the most energy of the errors that arise at its used elements."""

    verdict: Verdict
    cause: Cause | None
    total: Gap
    replayed: Replayed


def judged(program: Program, captured: Mapping[int, CapturedValue], scheme: str) -> dict[int, Judged]:
    tolerance, reference = allowed(scheme), program.run()
    operators = replay(
        program,
        captured,
        lambda _, introduced: has_own_error(introduced, tolerance),
        lambda index: np.asarray(reference[index]),
    )
    rows: dict[int, Judged] = {}
    for index, operator in operators.items():
        used: Any = ... if operator.used_mask is None else operator.used_mask
        compared = compare_values(captured[index].dequantized()[used], np.asarray(reference[index])[used])
        status = compared.status
        if operator.used_mask is not None and status in ("compared", "exact"):
            status = "masked"
        energies = {cause: float(np.square(error[used], dtype=float).sum()) for cause, error in operator.errors.items()}
        rows[index] = Judged(
            verdict=verdict(status, compared.gap, operator, tolerance),
            cause=max(energies, key=energies.__getitem__) if any(energies.values()) else None,
            total=compared.gap,
            replayed=operator,
        )
    return rows


def verdicts(rows: Mapping[int, Judged]) -> dict[int, Verdict]:
    return {index: row.verdict for index, row in rows.items()}


def floats(captured: Mapping[int, CapturedValue]) -> dict[int, CapturedValue]:
    """Return the same values without their grids, as a device with fp16 logs them."""
    return {
        index: CapturedValue(elements=value.dequantized().astype(np.float32), qparams=None)
        for index, value in captured.items()
    }


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def any_error(_: int, introduced: Introduced) -> bool:
    """Return whether an operator has an error of its own, however small."""
    return bool(introduced.gap.max_abs) or introduced.nonfinite > 0


def introducing(replayed: Mapping[int, Replayed]) -> list[int]:
    return [index for index, operator in replayed.items() if any_error(index, operator.introduced)]
