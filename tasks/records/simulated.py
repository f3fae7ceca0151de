"""The record of an evaluation on the host."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """The final outputs of many samples by the model of the device's arithmetic, against eager PyTorch."""

    samples: int
    snr_db: float
    """Lowest SNR of any final output of any sample, in dB; ∞ if all are exact."""
    mean_snr_db: float
    """SNR of the mean noise-to-signal ratio of each sample's worst output, in dB."""
    worst_sample: str
    top1_agreement: float | None
    """Share of samples with the same largest element as in eager PyTorch; None without such an output."""
    top1_agreement_low: float | None
    top1_agreement_high: float | None
    """The bounds of the 95 % score interval (Wilson 1927)."""
    accuracy: float | None
    """Share of labelled samples that are classified correctly; None without labels."""
    accuracy_low: float | None
    accuracy_high: float | None
    accuracy_eager: float | None
