"""KL divergence, probabilities and perplexity of a language model's tokens, against an independent calculation."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from qnnsweep.tasks.numerics.token_scores import score_statistics, token_scores
from qnnsweep.tasks.records import StepComparison, TokenScores
from tests.sample_records import STEP

ROWS, VOCABULARY = 5, 7
SCORES = arrays(np.float32, (ROWS, VOCABULARY), elements=st.floats(-30, 30, width=32))
RIGHT = st.lists(st.one_of(st.none(), st.integers(0, VOCABULARY - 1)), min_size=ROWS, max_size=ROWS)


def probabilities(row: Any) -> list[float]:
    """The softmax of a row, by exact sums."""
    weights = [math.exp(float(value) - float(max(row))) for value in row]
    return [weight / math.fsum(weights) for weight in weights]


@given(device=SCORES, reference=SCORES, right=RIGHT)
def test_the_scores_of_tokens_are_those_of_the_definitions(
    device: Any, reference: Any, right: list[int | None]
) -> None:
    found = token_scores(device, reference, right)
    pairs = [(probabilities(one), probabilities(other)) for one, other in zip(device, reference, strict=True)]
    expected = [
        math.fsum(p * (math.log(p) - math.log(q)) for p, q in zip(other, one, strict=True)) for one, other in pairs
    ]
    known = [(pair, token) for pair, token in zip(pairs, right, strict=True) if token is not None]
    assert found.kl_divergence_nats == pytest.approx(expected, abs=1e-9, rel=1e-9)
    assert all(value >= 0 for value in found.kl_divergence_nats)
    assert found.same_top1 == tuple((device.argmax(1) == reference.argmax(1)).tolist())
    assert found.log_probability_nats == pytest.approx([math.log(one[token]) for (one, _), token in known], abs=1e-9)
    assert found.log_probability_reference_nats == pytest.approx(
        [math.log(other[token]) for (_, other), token in known], abs=1e-9
    )


def test_equal_scores_have_no_divergence() -> None:
    scores = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    found = token_scores(scores, scores, [None, 1, 2])
    assert found.kl_divergence_nats == (0.0, 0.0, 0.0)
    assert found.log_probability_nats == found.log_probability_reference_nats


def test_a_row_that_is_not_finite_does_not_count() -> None:
    device, reference = np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32)
    device[1, 2] = np.nan
    reference[2, 0] = np.inf
    found = token_scores(device, reference, [3, 3, 3])
    assert found == TokenScores(
        kl_divergence_nats=(0.0,),
        same_top1=(True,),
        log_probability_nats=(math.log(0.25),),
        log_probability_reference_nats=(math.log(0.25),),
    )


def of_sequence(number: int, divergence: list[float], logs: list[float], reference: list[float]) -> StepComparison:
    scores = TokenScores(
        kl_divergence_nats=tuple(divergence),
        same_top1=tuple(value < 1 for value in divergence),
        log_probability_nats=tuple(logs),
        log_probability_reference_nats=tuple(reference),
    )
    return replace(STEP, sample=number, scores=scores)


def test_the_statistics_are_those_of_all_tokens_and_their_intervals_those_of_sequences() -> None:
    steps = [
        of_sequence(0, [0.1, 0.2], [math.log(0.5)], [math.log(0.25)]),
        of_sequence(0, [0.3], [math.log(0.5)], [math.log(0.5)]),
        of_sequence(1, [2.0], [math.log(0.125)], [math.log(0.25)]),
        replace(STEP, sample=1, scores=None),
    ]
    found = {score.statistic: score for score in score_statistics(steps)}
    assert {name: score.value for name, score in found.items()} == pytest.approx(
        {
            "kl_divergence_mean": 0.65,
            "kl_divergence_median": 0.25,
            "kl_divergence_p99": float(np.percentile([0.1, 0.2, 0.3, 2.0], 99)),
            "kl_divergence_max": 2.0,
            "same_top1": 0.75,
            "perplexity": 32 ** (1 / 3),
            "perplexity_reference": 32 ** (1 / 3),
            "perplexity_ratio": 1.0,
            "probability_difference_mean": (0.25 + 0 - 0.125) / 3,
            "probability_difference_median": 0.0,
            "probability_difference_rms": math.sqrt((0.0625 + 0.015625) / 3),
            "probability_difference_min": -0.125,
            "probability_difference_max": 0.25,
        }
    )
    mean = found["kl_divergence_mean"]
    assert (mean.tokens, mean.sequences) == (4, 2)
    assert (mean.low, mean.high) == pytest.approx((0.2, 2.0))  # one of the two sequences, twice
    assert found["perplexity"].tokens == 3


def test_one_sequence_has_no_interval_and_no_text_no_perplexity() -> None:
    found = {score.statistic: score for score in score_statistics([of_sequence(0, [0.5], [], [])])}
    assert sorted(found) == [
        *("kl_divergence_max", "kl_divergence_mean", "kl_divergence_median", "kl_divergence_p99", "same_top1")
    ]
    assert all(score.low is score.high is None for score in found.values())


def test_a_perplexity_that_is_not_finite_is_null() -> None:
    found = {score.statistic: score.value for score in score_statistics([of_sequence(0, [0.5], [-800.0], [-1.0])])}
    assert (found["perplexity"], found["perplexity_ratio"]) == (None, None)
    assert found["perplexity_reference"] == pytest.approx(math.e)


def test_without_tokens_there_are_no_statistics() -> None:
    assert score_statistics([replace(STEP, scores=None)]) == ()
