"""The schema of a repair: the target that a scheme must reach, and what the search for this scheme may cost."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

from qnnsweep.conf.constraints import Count, Decibels, Finite, Natural, Share, function_path_or
from qnnsweep.conf.names import METRICS

Ratio = Annotated[float, Interval(ge=0.01)]
Bits = Annotated[float, Interval(ge=2, le=32)]


@dataclass(kw_only=True, slots=True)
class TargetConfig:
    """The target of `qnnsweep repair`. Every limit that is not null must be met on every SoC."""

    final_snr_db: Decibels | None = None
    """The lowest SNR of any final output of any sample, against eager fp32."""
    mean_snr_db: Decibels | None = None
    """The SNR of the mean noise of all samples, against eager fp32."""
    quantile_snr_db: Decibels | None = None
    """The SNR that all samples reach except a part of `quantile`."""
    quantile: Share = 0.1
    """The part of the samples that may have a lower SNR than `quantile_snr_db`."""
    top1_agreement: Share | None = None
    """The share of samples whose largest output is at the same index as in eager fp32."""
    accuracy: Share | None = None
    """The share of labelled samples that the device classifies correctly."""
    metric: Annotated[str, function_path_or(METRICS)] | None = None
    """A metric of the final outputs, as for `measure.metrics`. Its mean over the samples must be at least
    `metric_at_least`, or at most `metric_at_most`."""
    metric_at_least: Finite | None = None
    metric_at_most: Finite | None = None
    introduced_operators: Natural | None = None
    """The largest number of operators that may introduce error."""
    size_kib: Count | None = None
    """The largest size of the shipping program, in KiB."""
    effective_bits: Bits | None = None
    """The largest mean number of bits of an element of the weights."""

    @property
    def is_of_size(self) -> bool:
        """Whether the search is for the best accuracy under a size: then it does not stop where the size is reached."""
        return self == TargetConfig(size_kib=self.size_kib, effective_bits=self.effective_bits, quantile=self.quantile)


@dataclass(kw_only=True, slots=True)
class BudgetConfig:
    """The limits of `qnnsweep repair`. A step that is beyond a limit on any SoC is reverted."""

    compilations: Count = 24
    """The maximum number of compilations. A recipe that is compiled for two SoCs counts as two. The program before the
    repair counts too, and so do programs that are read from the cache."""
    size_ratio: Ratio | None = None
    """The maximum size of the shipping program, divided by its size before the repair."""
    ddr_ratio: Ratio | None = None
    """The maximum number of bytes that the program moves from and to DRAM, divided by that before the repair."""
    cycles_ratio: Ratio | None = None
    """The maximum number of cycles per inference, divided by that before the repair. Needs measure.profile_level=2."""
    spill_bytes: Natural | None = None
    """The maximum number of bytes that the program moves to DRAM because the NPU's own memory is too small."""


@dataclass(kw_only=True, slots=True)
class CertificateConfig:
    """The samples that judge the repaired scheme. Neither the calibration nor the search uses them."""

    samples: Count = 64
    """The number of samples that are taken from the model's evaluation data in addition to those of the search."""
