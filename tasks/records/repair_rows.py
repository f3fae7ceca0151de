"""The rows about a repair: the changes of a scheme that were tried, and the certificate. Every field is a column."""

from dataclasses import dataclass

from qnnsweep.tasks.records.cell_rows import CellIdentity, Finals
from qnnsweep.tasks.records.hints import Bytes, Decibels
from qnnsweep.tasks.records.vocabulary import Cause, CertificateSide


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairRow:
    """One row per step of `qnnsweep repair` and SoC: the change that was tried, its predicted and its measured gain,
    and whether it was accepted."""

    cell: CellIdentity
    step: int
    """Number of the step; 0 is the program before the repair."""
    candidate: str | None
    """What the step changed; null for step 0."""
    cause: Cause | None
    """The cause of error that the change should remove; null for step 0."""
    operators: tuple[str, ...]
    """The operators, or the model's inputs, at which the change should remove error, the largest error first."""
    predicted_db: Decibels | None
    """Predicted gain of the number that the target is about, from the trial on the host; null for step 0."""
    measured_db: Decibels | None
    """Gain of this number over the last accepted step, by the search's samples. Of several SoCs, the lowest one counts.
    Null for step 0, and if the step was not measured or an SNR is infinite."""
    mean_snr_db: Decibels | None
    """SNR of the mean noise of this SoC's program over the search's samples; null if it is infinite or not measured."""
    final_snr_db: Decibels | None
    """Lowest SNR of any final output of this SoC's program over the search's samples; null as `mean_snr_db`."""
    metric: float | None
    """Mean of `target.metric` over the search's samples; null without this key, and if the metric has no value."""
    size_bytes: Bytes | None
    """Size of the shipping program; null if there is none."""
    effective_bits: float | None
    """Mean number of bits of an element of the weights, with the scales of blocks; null if there is no program."""
    ddr_bytes: Bytes | None
    """Bytes that the program moves from and to DRAM, by the compiler's count; null if it printed no counts."""
    cycles: float | None
    """Cycles per inference of the NPU; null unless `measure.profile_level` is 2 or 3."""
    accepted: bool
    """Whether the next steps build on this step."""
    why: str
    """Why the step was accepted or reverted."""
    compilations: int
    """Number of compilations of the search up to this step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CertificateRow:
    """One row per SoC of a repair, before and after: the accuracy on samples that neither the calibration nor the
    search has used."""

    cell: CellIdentity
    side: CertificateSide
    """Whether the row is about the scheme before or after the repair."""
    certificate_samples: int
    """Number of samples that judge the scheme."""
    left_out: int
    """Number of further samples that are equal to a sample of the calibration or of the search."""
    finals: Finals
    metric: float | None
    """Mean of `target.metric` over the samples; null without this key, and if the metric has no value."""
    metric_low: float | None
    """Lower bound of the 95 % interval of `metric`, by the percentile bootstrap; null for fewer than two samples."""
    metric_high: float | None
    """Upper bound of this interval."""
    size_bytes: Bytes
    """Size of the shipping program."""
    ddr_bytes: Bytes | None
    """Bytes that the program moves from and to DRAM, by the compiler's count; null if it printed no counts."""
    cycles: float | None
    """Cycles per inference of the NPU; null unless `measure.profile_level` is 2 or 3."""
