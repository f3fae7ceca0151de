"""The limits of a language model's scores decide its outcome, and a missed one is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qnnsweep.conf.schema import Request
from qnnsweep.tasks.records import ScoreStatistic
from qnnsweep.tasks.results.outcome import judge
from tests.results.test_outcome import cell, comparison, gap, output


@pytest.mark.parametrize(
    ("name", "limit", "reason"),
    [
        ("kl_divergence_nats", 0.5, None),
        ("kl_divergence_nats", 0.1, "the mean KL divergence 0.125 nats is above 0.1"),
        ("perplexity_ratio", 1.25, None),
        ("perplexity_ratio", 1.2, "the perplexity is 1.250 times that of eager PyTorch, above 1.2"),
    ],
)
def test_the_scores_of_a_language_model_have_limits(
    request_8a8w: Request, name: str, limit: float, reason: str | None
) -> None:
    statistics = {"kl_divergence_mean": 0.125, "perplexity_ratio": 1.25}
    scores = tuple(
        ScoreStatistic(statistic=statistic, value=value, low=None, high=None, tokens=9, sequences=1)
        for statistic, value in statistics.items()
    )
    strict = replace(request_8a8w, tolerance=replace(request_8a8w.tolerance, **{name: {"8a8w": limit}}))
    found = judge(cell(strict, comparison=replace(comparison(output(0, gap(21.0))), scores=scores)))
    assert (found.outcome, found.reason) == (("passed", None) if reason is None else ("out_of_tolerance", reason))
    assert found.missed_limits == (() if reason is None else (name,))
