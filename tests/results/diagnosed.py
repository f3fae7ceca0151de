"""Cells, and the sentences about them."""

from dataclasses import replace

from qnnsweep.conf.schema import Request
from qnnsweep.tasks.records import Cures, Trial
from qnnsweep.tasks.results.diagnosis import diagnosis
from qnnsweep.tasks.results.outcome import CellResult, judge
from tests.sample_records import ANSWER, COMPARISON, passed_cell


def diagnosed(cell: CellResult) -> str:
    return diagnosis(cell, judge(cell))


def cured_cell(planned: Request, noise: tuple[float, ...], refused: str | None) -> CellResult:
    """Return a cell of two samples with one trial."""
    rows = tuple(
        replace(ANSWER, rung=rung, sample=sample, sample_name="ab"[sample], gap=replace(ANSWER.gap, snr_db=snr_db))
        for rung in ("designed", "device")
        for sample, snr_db in ((0, 35.0), (1, 30.0))
    )
    tried = Trial(
        cause="weights", change="16-bit float", operators=("conv",), noise=noise, refused=refused,
    )  # fmt: skip
    return passed_cell(planned, comparison=replace(COMPARISON, outputs=rows), cures=Cures(trials=(tried,)))
