"""The noise of final outputs, including noise that no SNR can express: that of equal outputs, of NaNs and of zeros.

The noise-to-signal ratio is the squared error divided by the energy of the reference: 10 ** (-SNR / 10). It is zero for
equal outputs. It is infinite if an output has NaNs or infinities that the reference does not have, if the shapes
differ, and if the output is not zero although the reference is all zeros.
"""

import math
from collections.abc import Iterable, Sequence

from qnnsweep.tasks.records import OutputComparison
from qnnsweep.tasks.records.vocabulary import Difference, OperatorStatus

MethodSample = tuple[str | None, int]
"""The name of a method, None for a model with one method, and the number of one of its samples."""
_ORDER: tuple[Difference | None, ...] = (None, "none", "finite", "infinite")
_LARGEST_EXPONENT = 300  # 10 ** 309 is more than float64 can hold


def noise_to_signal(status: OperatorStatus, snr_db: float | None) -> float:
    """Return the noise-to-signal ratio of an output with this status and SNR."""
    if status == "exact":
        return 0.0
    return math.inf if snr_db is None else 10 ** min(-snr_db / 10, _LARGEST_EXPONENT)


def noise_by_sample(outputs: Iterable[OutputComparison]) -> dict[MethodSample, float]:
    """Return, per sample of a method, the largest noise-to-signal ratio of its outputs. `outputs`: of one rung."""
    largest: dict[MethodSample, float] = {}
    for row in outputs:
        noise = noise_to_signal(row.status, row.gap.snr_db)
        sample = row.method, row.sample
        largest[sample] = max(noise, largest.get(sample, 0.0))
    return largest


def lowest_snr(compared: Sequence[tuple[OperatorStatus, float | None]]) -> tuple[Difference | None, float | None]:
    """Return how outputs differ from their references, and their lowest SNR in dB.

    `compared`: per output, its status and its SNR. The SNR is None unless the difference is `finite`. Both are None if
    there are no outputs.
    """
    if not compared:
        return None, None
    noise = [noise_to_signal(status, snr_db) for status, snr_db in compared]
    if math.inf in noise:
        return "infinite", None
    finite = [snr_db for status, snr_db in compared if status != "exact" and snr_db is not None]
    return ("finite", min(finite)) if finite else ("none", None)


def worst_difference(
    differences: Iterable[tuple[Difference | None, float | None]],
) -> tuple[Difference | None, float | None]:
    """Return the worst of several results of `lowest_snr`. None is better than any difference."""
    pairs: list[tuple[Difference | None, float | None]] = [(None, None), *differences]
    return max(pairs, key=lambda pair: (_ORDER.index(pair[0]), -(pair[1] or 0.0)))


def in_db(noise: float) -> float | None:
    """Return the SNR in dB of a noise-to-signal ratio; None if the ratio is zero or infinite."""
    return -10 * math.log10(noise) if noise and math.isfinite(noise) else None


def decibels(noise: float) -> float:
    """Return the SNR in dB of a noise-to-signal ratio: inf if the ratio is zero, and -inf if it is infinite."""
    if noise == 0:
        return math.inf
    return -10 * math.log10(noise) if math.isfinite(noise) else -math.inf
