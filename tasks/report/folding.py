"""SoCs that a page shows as one: those of one architecture whose cells are all equal."""

from collections.abc import Mapping, Sequence

from qnnsweep.tasks.records.tables import Row

Column = tuple[str, ...]
"""The names of a column of the matrix: the SoC, and what else varies in the run."""
_ARCH = "soc.arch="
_OF_THE_SOC = ("soc", "soc_digest", "program_soc", "settings", "log", "measured_run", "sent_bytes")
"""The columns of a cell that name its SoC, or what computed its values."""
_TEXTS = ("diagnosis", "error", "reason")
Contents = tuple[object, ...]


def folds(rows: Sequence[tuple[Column, Row]], kept: Sequence[Row]) -> dict[Column, Column]:
    """Map each column to the first one that is equal to it, which is itself if there is none.

    `rows`: the cells with their columns, in the order of the page. `kept`: cells whose columns are never folded.
    """
    contents: dict[Column, dict[tuple[str | None, str | None], list[Contents]]] = {}
    for column, row in rows:
        contents.setdefault(column, {}).setdefault((row["model"], row["scheme"]), []).append(_contents(row))
    alone = {column for column, row in rows if row in kept or _arch(row) is None}
    found: dict[Column, Column] = {}
    for column, cells in contents.items():
        equal = (
            first for first in found if first[1:] == column[1:] and contents[first] == cells and first not in alone
        )
        found[column] = column if column in alone else next(equal, column)
    return found


def _arch(row: Row) -> str | None:
    settings: Sequence[str] = row["settings"] or ()
    return next((setting for setting in settings if setting.startswith(_ARCH)), None)


def _contents(row: Row) -> Contents:
    """Return what two cells have in common if they are equal. How long it took does not count.

    The times of the simulator do not count either, because they say nothing about an SoC.
    """
    left_out = {name for name in row if name.endswith("_s")} | {*_OF_THE_SOC}
    if row["timed_on"] != "device":
        left_out.add("latency_p50_ms")
    shown: Mapping[str, object] = {name: value for name, value in row.items() if name not in left_out}
    texts = [str(row[name]).replace(str(row["soc"]), "") for name in _TEXTS]
    return (_arch(row), *texts, *(repr(value) for name, value in sorted(shown.items()) if name not in _TEXTS))
