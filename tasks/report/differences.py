"""The page of the differences of two runs, cell by cell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from qnnsweep.tasks.report.page import STYLES, beside, environment

Line = Mapping[str, str]
"""A difference in words: `what`, `before`, `after`, `limit` and `verdict`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellDifferences:
    """The differences of one cell. `changed`: its inputs that differ. `steady`: differences within their limits."""

    name: str
    changed: Sequence[str]
    changes: Sequence[Line]
    steady: Sequence[Line]


def render_differences(
    run_a: str,
    run_b: str,
    regressions: int,
    cells: Sequence[CellDifferences],
    only_in_a: Sequence[str],
    only_in_b: Sequence[str],
) -> str:
    """Return the differences as one HTML document, which lies beside the report of the second run."""
    return (
        environment()
        .get_template("differences.html.j2")
        .render(
            run_a=run_a,
            run_b=run_b,
            regressions=regressions,
            cells=cells,
            only_in_a=only_in_a,
            only_in_b=only_in_b,
            style=Markup("\n".join(map(beside, STYLES))),  # noqa: S704 - our own files
        )
    )
