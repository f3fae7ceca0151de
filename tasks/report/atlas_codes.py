"""How many codes are equal in an operator atlas: device against the host's arithmetic, and device against simulator."""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import TypeVar

from qnnsweep.tasks.records.atlas import NOT_SIMULATED
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.report.format import NULL, decimal, percent

ENOUGH = 0.99
"""The share of equal codes below which a case is listed."""
_ONE_STEP, _ONE_STEP_DB = 1.0, 20 * math.log10(2**10)
Where = TypeVar("Where", bound=Hashable)


def shares(rows: Iterable[tuple[Where, Row]], columns: Sequence[Where]) -> list[tuple[str, ...]]:
    """Return a line per operator type: in each column the mean share of equal codes of its cases, and the lowest.

    `rows`: the rows of the table `atlas`, each with its column. The share of a case is that of its worst operator.
    """
    found: dict[str, dict[Where, list[float]]] = defaultdict(lambda: defaultdict(list))
    for where, row in rows:
        if row["introduced_equal"] is not None:
            found[row["worst_operator"]][where].append(row["introduced_equal"])
    return [
        (target, *(_share(listed[where]) if where in listed else NULL for where in columns))
        for target, listed in sorted(found.items())
    ]


def _share(values: Sequence[float]) -> str:
    lowest = f" (lowest {percent(min(values))})" if min(values) < max(values) else ""
    return f"{percent(fmean(values))} %{lowest}"


def is_unlike(row: Row) -> bool:
    """Return whether fewer codes than `ENOUGH` are equal to the host's, and one of them is off by more than a step.

    A float16 that is off by a step has a relative error of at most 2**-10, so that the SNR is at least `_ONE_STEP_DB`.
    """
    if row["introduced_equal"] is None or row["introduced_equal"] >= ENOUGH:
        return False
    if row["introduced_steps"] is None:
        return row["introduced_snr_db"] is None or row["introduced_snr_db"] < _ONE_STEP_DB
    return row["introduced_steps"] > _ONE_STEP


def error_size(row: Row) -> str:
    """Return the share of equal codes of a case with the size of the error."""
    steps = None if row["introduced_steps"] is None else f"up to {row['introduced_steps']:.3g} steps"
    snr = None if row["introduced_snr_db"] is None else f"{decimal(row['introduced_snr_db'])} dB"
    return ", ".join(filter(None, (f"{percent(row['introduced_equal'])} % equal", steps, snr)))


def differs(row: Mapping[str, object]) -> bool:
    """Return whether a device has not returned what the simulator has."""
    why = row["simulator_why"]
    return row["executed_on"] is not None and why is not None and not str(why).startswith(NOT_SIMULATED)


def is_compared(row: Mapping[str, object]) -> bool:
    """Return whether tensors of a device were compared with those of the simulator, or should have been."""
    return row["executed_on"] is not None and (row["simulator_equal"] is not None or differs(row))


def beside_simulator(rows: Iterable[tuple[Where, Row]]) -> Iterator[tuple[Where, int, int]]:
    """Yield per column the number of cases that were compared with the simulator, and how many of them differ."""
    compared, unlike = Counter[Where](), Counter[Where]()
    for where, row in rows:
        compared[where] += is_compared(row)
        unlike[where] += differs(row)
    yield from ((where, count, unlike[where]) for where, count in compared.items() if count)


def simulator_size(row: Row) -> str:
    """Return how a device differs from the simulator, with the tensor at which the difference begins."""
    if row["simulator_equal"] is None:
        return row["simulator_why"] or "not compared with the simulator"
    return f"{percent(row['simulator_equal'])} % equal to the simulator; {row['simulator_why']}"
