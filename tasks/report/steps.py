"""The steps of a model with states: the error along time, and the tokens of the device and of eager PyTorch."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

MOST_SEQUENCES = 12
"""The largest number of sequences whose tokens are in the page. The table `steps` has all of them."""
WIDTH, HEIGHT, LEFT, BOTTOM = 640, 150, 34, 18
_CEILING = 80.0  # dB: whatever is better looks the same
_SERIES = ("total_snr_db", "inherited_snr_db", "introduced_snr_db")


_STATISTICS = {
    "kl_divergence_mean": "KL divergence, mean, nats",
    "kl_divergence_median": "KL divergence, median, nats",
    "kl_divergence_p99": "KL divergence, 99 %, nats",
    "kl_divergence_max": "KL divergence, largest, nats",
    "same_top1": "share of the same most probable token",
    "perplexity": "perplexity of the texts on the device",
    "perplexity_reference": "perplexity in eager PyTorch",
    "perplexity_ratio": "perplexity, device / eager PyTorch",
    "probability_difference_mean": "probability of the right token, device - eager, mean",
    "probability_difference_rms": "probability of the right token, difference, RMS",
}
"""The statistics in the page, with their heads. The table `scores` has all."""


def steps_of_page(rows: Sequence[Row], scores: Sequence[Row] = ()) -> dict[str, Any] | None:
    """Return the chart of the sequence with the lowest SNR, and the tokens of the first sequences; None without steps.

    A sequence in which a token differs comes before the others. `scores`: the cell's rows of the table `scores`.
    """
    by_sequence: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_sequence[row["sample"]].append(row)
    if not by_sequence:
        return None
    sequences = [sorted(listed, key=lambda row: row["step"]) for listed in by_sequence.values()]
    worst = min(sequences, key=_lowest)
    tokens = [_tokens(listed) for listed in sequences if listed[0]["token"] is not None]
    tokens.sort(key=lambda sequence: sequence["first"] is None)
    return {
        "name": worst[0]["sample_name"],
        "chart": _chart(worst),
        "worst": _worst_step(worst),
        "tokens": tokens[:MOST_SEQUENCES],
        "left_out": max(0, len(tokens) - MOST_SEQUENCES),
        "differing": sum(sequence["first"] is not None for sequence in tokens),
        "sequences": len(sequences),
        "scores": [(_STATISTICS[row["statistic"]], row) for row in scores if row["statistic"] in _STATISTICS],
    }


def _lowest(steps: Sequence[Row]) -> float:
    values = [step[name] for step in steps for name in ("total_snr_db", "introduced_snr_db") if step[name] is not None]
    return min(values, default=_CEILING)


def _worst_step(steps: Sequence[Row]) -> Row:
    """Return the step with the lowest introduced SNR."""
    return min(steps, key=lambda step: _CEILING if step["introduced_snr_db"] is None else step["introduced_snr_db"])


def _tokens(steps: Sequence[Row]) -> dict[str, Any]:
    """Return the tokens of a sequence on both sides, and the first step whose token differs."""
    first = next((step for step in steps if step["token"] != step["token_reference"]), None)
    return {
        "name": steps[0]["sample_name"],
        "device": [
            {
                "token": step["token"] if step["text"] is None else step["text"],
                "differs": step["token"] != step["token_reference"],
                "wrong": step["label"] is not None and step["token"] != step["label"],
            }
            for step in steps
        ],
        "eager": [
            step["token_reference"] if step["text_reference"] is None else step["text_reference"] for step in steps
        ],
        "is_text": steps[0]["text"] is not None,
        "first": first,
    }


def _chart(steps: Sequence[Row]) -> dict[str, Any]:
    """Return the points of the chart: per series, the lines between steps that follow one another, and the marks."""
    values = [step[name] for step in steps for name in _SERIES if step[name] is not None]
    low = min(0.0, *values) if values else 0.0
    last = max(1, len(steps) - 1)

    def place(number: int, value: float) -> tuple[float, float]:
        share = (min(value, _CEILING) - low) / (_CEILING - low)
        x = LEFT + (WIDTH - LEFT - 8) * number / last
        return round(x, 1), round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 8) * share, 1)

    points = {
        name: [None if step[name] is None else place(number, step[name]) for number, step in enumerate(steps)]
        for name in _SERIES
    }
    ticks = sorted({0, 20, 40, 60, 80} | ({round(low)} if low else set()))
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "lines": {name: _lines(listed) for name, listed in points.items()},
        "marks": {name: [point for point in listed if point is not None] for name, listed in points.items()},
        "ticks": [(tick, place(0, tick)[1]) for tick in ticks],
        "numbers": [
            (step["step"], place(number, low)[0], f"{step['method'] or 'forward'}, step {step['step']}")
            for number, step in enumerate(steps)
            if number % max(1, len(steps) // 16) == 0
        ],
    }


def _lines(points: Sequence[tuple[float, float] | None]) -> list[str]:
    """Return the polylines of a series, which has gaps where a value is not defined."""
    lines: list[list[str]] = [[]]
    for point in points:
        if point is None:
            lines.append([])
        else:
            lines[-1].append(f"{point[0]},{point[1]}")
    return [" ".join(line) for line in lines if len(line) > 1]
