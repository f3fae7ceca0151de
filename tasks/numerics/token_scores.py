"""The scores of a language model's tokens in the numbers of its community: KL divergence, probabilities, perplexity."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qnnsweep.tasks.numerics.interval import resampled_interval
from qnnsweep.tasks.records import ScoreStatistic, StepComparison, TokenScores
from qnnsweep.tasks.records.vocabulary import TokenStatistic

Array = NDArray[Any]
Floats = NDArray[np.float64]


def token_scores(device: Array, reference: Array, right: Sequence[int | None]) -> TokenScores:
    """Return the comparison of two tables of scores, [rows, vocabulary], in float64.

    A row is the scores of the next token after one token that was read; rows with a score that is not finite do not
    count. The KL divergence of a row is the sum of
    p (log p - log q) over the vocabulary, with p of the reference and q of the device (Kullback and Leibler, Annals of
    Mathematical Statistics 22, 1951). `right`: per row, the token that follows in the text; None if there is no text.
    """
    finite = np.isfinite(np.concatenate([device, reference], axis=-1)).all(axis=-1)
    actual, expected = (_log_probabilities(scores[finite]) for scores in (device, reference))
    divergence = (np.exp(expected) * (expected - actual)).sum(axis=-1)
    counted: list[int] = np.flatnonzero(finite).tolist()
    rows = [(number, token) for number, row in enumerate(counted) if (token := right[row]) is not None]
    return TokenScores(
        kl_divergence_nats=tuple(np.maximum(divergence, 0.0).tolist()),
        same_top1=tuple((device[finite].argmax(-1) == reference[finite].argmax(-1)).tolist()),
        log_probability_nats=tuple(float(actual[place]) for place in rows),
        log_probability_reference_nats=tuple(float(expected[place]) for place in rows),
    )


@dataclass(frozen=True, slots=True)
class _Sequence:
    """The rows of a sequence's steps, one after the other."""

    divergence: Floats
    same: Floats
    logs: Floats
    """The natural logarithms of the probabilities of the right tokens on the device."""
    logs_reference: Floats


def score_statistics(steps: Sequence[StepComparison]) -> tuple[ScoreStatistic, ...]:
    """Return the statistics of all tokens of all sequences, with 95 % intervals; none without scores of tokens.

    The intervals are percentiles of the bootstrap over the sequences (Efron 1979), because the tokens of one text are
    not independent. They are None with fewer than two sequences. The perplexity is exp of the mean negative logarithm
    of the probability of the right token.
    """
    listed: dict[int, list[TokenScores]] = defaultdict(list)
    for step in steps:
        if step.scores is not None:
            listed[step.sample].append(step.scores)
    sequences = [_sequence(scores) for scores in listed.values()]
    return tuple(
        _with_interval(name, statistic, chosen)
        for name, statistic in _STATISTICS.items()
        if (chosen := [one for one in sequences if _rows(name, one).size])
    )


def _sequence(scores: Sequence[TokenScores]) -> _Sequence:
    def joined(name: str) -> Floats:
        return np.array([value for one in scores for value in getattr(one, name)], np.float64)

    names = ("kl_divergence_nats", "same_top1", "log_probability_nats", "log_probability_reference_nats")
    return _Sequence(*map(joined, names))


def _rows(name: str, sequence: _Sequence) -> Floats:
    """Return the rows that count for a statistic."""
    if name.startswith("kl_divergence"):
        return sequence.divergence
    return sequence.same if name == "same_top1" else sequence.logs


def _with_interval(
    name: TokenStatistic, statistic: Callable[[_Sequence], float], sequences: Sequence[_Sequence]
) -> ScoreStatistic:
    def of(numbers: Iterable[int]) -> float:
        chosen = [sequences[number] for number in numbers]
        return statistic(_Sequence(*(np.concatenate([getattr(one, part) for one in chosen]) for part in _PARTS)))

    value, interval = of(range(len(sequences))), resampled_interval(len(sequences), of)
    return ScoreStatistic(
        statistic=name,
        value=value if math.isfinite(value) else None,
        low=None if interval is None else interval[0],
        high=None if interval is None else interval[1],
        tokens=sum(_rows(name, one).size for one in sequences),
        sequences=len(sequences),
    )


def _log_probabilities(scores: Array) -> Floats:
    """Return the logarithm of the softmax of each row, in float64."""
    shifted = scores.astype(np.float64) - scores.max(axis=-1, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


_PARTS = ("divergence", "same", "logs", "logs_reference")


def _perplexity(logs: Floats) -> float:
    with np.errstate(over="ignore"):  # it is not finite then
        return float(np.exp(-logs.mean()))


def _difference(sequence: _Sequence) -> Floats:
    """Return by how much the probability of the right token is larger on the device."""
    return np.exp(sequence.logs) - np.exp(sequence.logs_reference)


_STATISTICS: dict[TokenStatistic, Callable[[_Sequence], float]] = {
    "kl_divergence_mean": lambda one: float(one.divergence.mean()),
    "kl_divergence_median": lambda one: float(np.median(one.divergence)),
    "kl_divergence_p99": lambda one: float(np.percentile(one.divergence, 99)),
    "kl_divergence_max": lambda one: float(one.divergence.max()),
    "same_top1": lambda one: float(one.same.mean()),
    "perplexity": lambda one: _perplexity(one.logs),
    "perplexity_reference": lambda one: _perplexity(one.logs_reference),
    "perplexity_ratio": lambda one: _perplexity(one.logs - one.logs_reference),
    "probability_difference_mean": lambda one: float(_difference(one).mean()),
    "probability_difference_median": lambda one: float(np.median(_difference(one))),
    "probability_difference_rms": lambda one: float(np.sqrt((_difference(one) ** 2).mean())),
    "probability_difference_min": lambda one: float(_difference(one).min()),
    "probability_difference_max": lambda one: float(_difference(one).max()),
}
