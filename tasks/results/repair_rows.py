"""The rows of the tables `repair` and `certificate`, and the cells of a repair as the other tables have them."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from statistics import mean

from qnnsweep.tasks.numerics.interval import bootstrap_interval
from qnnsweep.tasks.records.repair_rows import CertificateRow, RepairRow
from qnnsweep.tasks.records.vocabulary import CertificateSide
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.results.repair import measurement, of_samples
from qnnsweep.tasks.results.repair_search import Step
from qnnsweep.tasks.results.rows import identity


def step_name(scheme: str, step: Step) -> str:
    """Return the name under which the tables have the scheme of a step."""
    return f"{scheme} step {step.number}" if step.number else scheme


def cells_of(step: Step, *, complete: bool = False) -> list[CellResult]:
    """Return the cells of a step under the step's name, with the tolerances of the scheme before the repair.

    `complete`: with all samples, and not only with those of the search.
    """
    cells = step.complete if complete else step.cells
    return [renamed(cell, step_name(cell.request.scheme.name, step)) for cell in cells]


def renamed(cell: CellResult, name: str) -> CellResult:
    """Return the cell with another name of its scheme, and with the tolerances of the scheme's present name."""
    request, scheme = cell.request, cell.request.scheme.name
    tolerance = request.tolerance
    limits = {
        key: {**by_scheme, name: by_scheme[scheme]}
        for key in ("final_snr_db", "top1_agreement")
        if scheme in (by_scheme := getattr(tolerance, key))
    }
    renamed = replace(request, scheme=replace(request.scheme, name=name), tolerance=replace(tolerance, **limits))
    return replace(cell, request=renamed)


def repair_rows(run_id: str, steps: Sequence[Step]) -> Iterator[RepairRow]:
    """Yield one row per step and SoC."""
    for step in steps:
        candidate = step.candidate
        for cell, measured in zip(cells_of(step), step.measurements, strict=True):
            final = measured.finals if measured else None
            yield RepairRow(
                cell=identity(run_id, cell),
                step=step.number,
                candidate=candidate.description if candidate else None,
                cause=candidate.cause if candidate else None,
                operators=candidate.operators if candidate else (),
                predicted_db=_finite(step.predicted_db),
                measured_db=_finite(step.measured_db),
                mean_snr_db=final.mean_snr_db if final else None,
                final_snr_db=final.final_snr_db if final else None,
                metric=mean(measured.metric) if measured and measured.metric else None,
                size_bytes=measured.size_bytes if measured else None,
                effective_bits=measured.effective_bits if measured else None,
                ddr_bytes=measured.ddr_bytes if measured else None,
                cycles=measured.cycles if measured else None,
                accepted=step.accepted,
                why=step.why,
                compilations=step.compilations,
            )


def certificate_rows(
    run_id: str, before: Step, after: Step, samples: Collection[int], left_out: int
) -> Iterator[CertificateRow]:
    """Yield two rows per SoC. `before`, `after`: steps whose cells were measured on all samples.

    `samples`: the samples that neither the calibration nor the search has used. `left_out`: the number of samples that
    were drawn for the certificate but are equal to a used sample.
    """
    sides: tuple[tuple[CertificateSide, Step], ...] = (("before", before), ("after", after))
    for side, step in sides:
        for cell in cells_of(step, complete=True):
            measured = measurement(of_samples(cell, samples)) if samples else None
            if measured is not None:
                yield CertificateRow(
                    cell=identity(run_id, cell),
                    side=side,
                    certificate_samples=len(samples),
                    left_out=left_out,
                    finals=measured.finals,
                    **_metric(measured.metric),
                    size_bytes=measured.size_bytes,
                    ddr_bytes=measured.ddr_bytes,
                    cycles=measured.cycles,
                )


def _metric(values: Sequence[float]) -> dict[str, float | None]:
    """Return the columns of the target's metric. `values`: one per sample."""
    low, high = bootstrap_interval(values) or (None, None)
    return {"metric": mean(values) if values else None, "metric_low": low, "metric_high": high}


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
