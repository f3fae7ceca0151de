"""The measure of a final output that counts for its cell: by the output's type, unless the tolerance names another."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from qnnsweep.tasks.numerics.noise import lowest_snr
from qnnsweep.tasks.records import OutputComparison
from qnnsweep.tasks.records.vocabulary import Difference

_SHARES = ("top1", "equal")
"""The measures that are shares and no SNR."""


def headline(row: OutputComparison, named: Mapping[str, str]) -> str:
    """Return the measure that counts for an output. `named`: `tolerance.headline`."""
    return named.get(row.output, "snr_db" if row.equal_elements is None else "equal")


def with_snr(rows: Iterable[OutputComparison], named: Mapping[str, str]) -> list[OutputComparison]:
    """Return the outputs for which an SNR counts, with this SNR as that of their gap, where it is defined."""
    chosen = [(row, headline(row, named)) for row in rows]
    return [
        row if measure == "snr_db" else _counting(row, getattr(row, measure))
        for row, measure in chosen
        if measure not in _SHARES
    ]


def _counting(row: OutputComparison, snr_db: float | None) -> OutputComparison:
    return row if snr_db is None else replace(row, gap=replace(row.gap, snr_db=snr_db))


def difference(rows: Sequence[OutputComparison], named: Mapping[str, str]) -> tuple[Difference | None, float | None]:
    """Return how outputs differ from those of eager PyTorch, and the lowest SNR of those for which an SNR counts."""
    measured = with_snr(rows, named)
    others = [row.status for row in rows if headline(row, named) in _SHARES]
    found, snr_db = lowest_snr([(row.status, row.gap.snr_db) for row in measured])
    if found == "infinite" or any(status not in ("compared", "exact") for status in others):
        return "infinite", None
    if found != "finite" and others:
        found = "finite" if "compared" in others else "none"
    return found, snr_db


def lowest_share(
    rows: Iterable[OutputComparison], counts: Callable[[OutputComparison], tuple[float, float] | None]
) -> float | None:
    """Return the share, over all samples, of the output where it is lowest. `counts`: part and whole of a row."""
    parts: dict[tuple[str | None, int], tuple[float, float]] = {}
    for row in rows:
        if (counted := counts(row)) is not None:
            before = parts.get((row.method, row.output_index), (0.0, 0.0))
            parts[row.method, row.output_index] = before[0] + counted[0], before[1] + counted[1]
    return min((part / whole for part, whole in parts.values() if whole), default=None)


def rows_of_top1(row: OutputComparison) -> tuple[float, float] | None:
    return None if row.rows is None or row.rows_same_top1 is None else (row.rows_same_top1, row.rows)


def equal_elements(row: OutputComparison) -> tuple[float, float] | None:
    return None if row.equal_elements is None else (row.equal_elements, 1.0)
