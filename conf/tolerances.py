"""The tolerances of a cell: the limits for its final outputs and for the errors of its operators."""

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Interval

from qnnsweep.conf.constraints import Decibels, Natural, NonNegative, Share, choice
from qnnsweep.conf.names import HEADLINES


@dataclass(kw_only=True, slots=True)
class OperatorTolerance:
    """The limits for an operator's error. An operator whose own error is beyond any of them introduces error. A limit
    that is null accepts any error."""

    snr_db: Decibels | None = None
    """The lowest accepted SNR, in dB. For a single channel, the limit is 15 dB lower."""
    rms_steps: Annotated[float, Interval(ge=0)] | None = None
    """The root mean square error, in steps of the value's grid on the device, up to which the SNR is not judged: a
    value that uses few steps of its grid has a low SNR even if the device is right."""
    steps: Annotated[float, Interval(ge=0)] | None = None
    """The largest accepted error of an element, in steps of the value's grid on the device. Errors that are smaller
    than the value's root mean square by `snr_db` are accepted too. For a value without a grid, only the other limits
    apply."""
    elements: Share = 0.001
    """The accepted share of elements whose error is beyond `steps`."""
    differing: Share | None = None
    """The accepted share of wrong elements of a value that is not floating point."""
    mean_steps: Annotated[float, Interval(ge=0)] | None = None
    """The largest accepted mean of the signed errors, in steps. A larger mean gives the verdict `biased`."""
    gain: Annotated[float, Interval(ge=0)] | None = None
    """The largest accepted difference of the gain from 1. A larger difference gives the verdict `biased`."""


@dataclass(kw_only=True, slots=True)
class ToleranceConfig:
    """The limits that a cell must meet to pass. A limit that is null accepts any value."""

    name: str
    final_snr_db: dict[str, Decibels] = field(default_factory=dict[str, float])
    """Maps a scheme's name to the lowest accepted SNR (dB) of each final output of each sample, against eager fp32."""
    top1_agreement: dict[str, Share] = field(default_factory=dict[str, float])
    """Maps a scheme's name to the lowest accepted share of samples whose largest output is at the same index as in
    eager fp32."""
    equal_elements: dict[str, Share] = field(default_factory=dict[str, float])
    """Maps a scheme's name to the lowest accepted share of equal elements of each output of integers, indices or
    booleans."""
    kl_divergence_nats: dict[str, NonNegative] = field(default_factory=dict[str, float])
    """Maps a scheme's name to the largest accepted mean KL divergence of a language model's tokens from eager fp32."""
    perplexity_ratio: dict[str, NonNegative] = field(default_factory=dict[str, float])
    """Maps a scheme's name to the largest accepted perplexity of a language model, divided by that of eager fp32."""
    headline: dict[str, Annotated[str, choice(HEADLINES, "measure")]] = field(default_factory=dict[str, str])
    """Maps an output's name to the measure that counts for it: `snr_db`, `centred_snr_db` (about the mean of each
    channel), `row_snr_db` (of the worst row), `top1` (along the last axis) or `equal` (share of equal elements). An
    output that is not named has `equal` if its elements are no floats, else `snr_db`."""
    operators: dict[str, OperatorTolerance] = field(default_factory=dict[str, OperatorTolerance])
    """Maps a key to a tolerance. An operator has the tolerance of the first of these keys that is present:
    `<scheme>/<target>`, `*/<target>`, `<scheme>`, `*`."""
    introduced_operators: Natural | None = None
    """The maximum number of operators that may introduce error. With null, they are only reported."""
