"""A run as HTML for a notebook: its cells, their sentences, and the error budget of one cell."""

from collections.abc import Iterator, Sequence
from typing import Any

from qnnsweep.tasks.records import RunFacts
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.report import format as display
from qnnsweep.tasks.report.page import summary, varying
from qnnsweep.tasks.report.templates import html
from qnnsweep.tasks.report.terminal import named_diagnoses

_LEAST_SHARE = 0.01
"""A smaller share has no bar."""
_COLUMNS = (
    *("model", "scheme", "soc", "toolchain", "device", "backend"),
    *("outcome", "lowest SNR dB", "top-1 %", "pte KiB"),
)


def run_in_notebook(
    run: RunFacts, cells: Sequence[Row], worst: Row, budget: Sequence[Row], culprit: str | None, remarks: Sequence[str]
) -> str:
    """Return the HTML. `worst`: the cell whose budget is shown, with its culprit in words, if it has one.

    `budget`: the rows of this cell in the table `budget`.
    """
    head, *lines = summary(cells, display.note)
    kept = [number for number, name in enumerate(head) if name in _COLUMNS]
    return html(
        "notebook",
        head=[head[number] for number in kept],
        lines=[[line[number] for number in kept] for line in lines],
        sentences=named_diagnoses(cells, varying(cells)),
        of=" ".join(str(worst[name]) for name in ("model", "scheme", "soc")),
        bars=sorted(_bars(worst, budget), key=lambda bar: -bar["share"]),
        culprit=culprit,
        report=run.report,
        remarks=remarks,
    )


def _bars(worst: Row, budget: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield, per cause of the error of the worst output, its share and the operator that has most of it."""
    place = worst["worst_final_output"], worst["worst_sample"]
    reported = [row for row in budget if (row["output"], row["sample"]) == place and row["share"] is not None]
    for total in reported:
        if total["operator"] is None and total["share"] >= _LEAST_SHARE:
            first = next((row for row in reported if row["operator"] and row["cause"] == total["cause"]), None)
            place = None if first is None else first["module_path"] or first["operator"]
            yield {"cause": total["cause"], "share": total["share"], "place": place}
