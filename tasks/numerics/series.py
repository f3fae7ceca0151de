"""The series: the numbers of a cell, and of an operator, that are compared from night to night."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """The unit and the properties of a number that is compared from night to night."""

    unit: str
    better: Literal[1, -1]  # 1: more is better; -1: less is better
    relative: bool = False  # the floor is a share of the baseline
    noise: float = 0.0  # the smallest standard deviation that is assumed, also if no two nights differ


SERIES: Mapping[str, Series] = {
    "passed": Series(unit="share", better=1, noise=0.05),
    "final_snr_db": Series(unit="dB", better=1),
    "device_snr_db": Series(unit="dB", better=1),
    "final_cosine": Series(unit="1", better=1),
    "top1_agreement": Series(unit="share", better=1),
    "accuracy": Series(unit="share", better=1),
    "kl_divergence_nats": Series(unit="nats", better=-1),
    "perplexity_ratio": Series(unit="1", better=-1),
    "observer_effect_snr_db": Series(unit="dB", better=1),
    "coverage": Series(unit="share", better=1, noise=0.01),
    "operators_introduced": Series(unit="operators", better=-1, noise=0.5),
    "delegated_nodes": Series(unit="nodes", better=1, noise=0.5),
    "non_delegated_nodes": Series(unit="nodes", better=-1, noise=0.5),
    "pte_bytes": Series(unit="bytes", better=-1, relative=True),
    "spill_bytes": Series(unit="bytes", better=-1, relative=True),
    "latency_p50_ms": Series(unit="ms", better=-1, relative=True),
}
"""The series of a cell. They are columns of the table `cells`, except `passed` and `coverage`, which are computed.

A series with a floor of 0 has a smallest noise. Otherwise, a count that once differs by 1 would be a regression.
"""
OPERATOR_SERIES: Mapping[str, Series] = {
    "snr_db": Series(unit="dB", better=1),
    "introduced_snr_db": Series(unit="dB", better=1),
}
"""The series of an operator: the value on its worst sample, against the edge graph."""
STEP_SERIES: Mapping[str, Series] = {
    "same_token": Series(unit="1", better=1, noise=0.05),
    "introduced_snr_db": Series(unit="dB", better=1),
    "state_introduced_snr_db": Series(unit="dB", better=1),
}
"""The series of a step of a model with states. `same_token` is 1 if the token is that of eager PyTorch, otherwise 0.

The total SNR of a step is no series, because it is worse in every step after the one that is to blame.
"""
COMPILED_SERIES = frozenset({"delegated_nodes", "non_delegated_nodes", "pte_bytes", "spill_bytes"})
"""The series that the compiler determines. Like all values of a simulator, they are equal if their inputs are equal."""
VALUE_SERIES = frozenset({
    *("passed", "final_snr_db", "device_snr_db", "final_cosine", "top1_agreement", "accuracy"),
    *("observer_effect_snr_db", "operators_introduced", "kl_divergence_nats", "perplexity_ratio"),
})  # fmt: skip
"""The series that depend on the values which a cell computes. Operators and steps are reported only if one of these is
worse."""
