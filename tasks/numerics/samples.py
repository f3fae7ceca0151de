"""The samples whose operators are captured, and the noise of the final outputs by which they are chosen."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from numpy.typing import NDArray

from qnnsweep.tasks.numerics.noise import noise_to_signal
from qnnsweep.tasks.numerics.operators import compare_values
from qnnsweep.tasks.records import ChosenSample
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.records.vocabulary import SampleRole

Array = NDArray[Any]


def sample_noise(outputs: Iterable[tuple[Array, Array]]) -> float:
    """Return the largest noise-to-signal ratio of a sample's final outputs. `outputs`: pairs of actual and reference.

    It is the noise that a cell reports: see `qnnsweep.tasks.numerics.noise`.
    """
    compared = [compare_values(actual, reference) for actual, reference in outputs]
    return max((noise_to_signal(output.status, output.gap.snr_db) for output in compared), default=0.0)


def worst_output(
    samples: Iterable[int], outputs: int, actual: Mapping[str, Array], reference: Mapping[str, Array]
) -> tuple[int, int]:
    """Return the sample and the index of the final output with the most noise. `outputs`: how many a sample has.

    `actual`, `reference`: the tensors by the key `<sample>/<output index>`.
    """

    def noise(place: tuple[int, int]) -> float:
        key = tensor_key(*place)
        return sample_noise([(actual[key], reference[key])])

    return max(product(samples, range(outputs)), key=noise)


def choose(noise: Sequence[float], count: int) -> tuple[ChosenSample, ...]:
    """Choose at most `count` samples, and return them in their order. `noise`: of every sample.

    The worst sample and the median come first, then samples whose ranks are spread evenly between the two and, if these
    are not enough, below the median. Of samples with equal noise, the earlier one counts as worse.
    """
    ranked = sorted(range(len(noise)), key=lambda sample: -noise[sample])
    middle = len(ranked) // 2
    between, below = ranked[1:middle], ranked[middle + 1 :]
    wanted = max(count - 2, 0)
    spread = [*_spread(between, wanted), *_spread(below, wanted - len(between))]
    roles: dict[int, SampleRole] = dict.fromkeys(spread, "spread")
    roles |= dict.fromkeys(ranked[middle : middle + 1] if count > 1 else (), "typical")
    roles |= dict.fromkeys(ranked[: min(count, 1)], "worst")  # an only sample is the worst
    return tuple(ChosenSample(sample=sample, role=roles[sample]) for sample in sorted(roles))


def _spread(ranked: Sequence[int], count: int) -> list[int]:
    """Return at most `count` of the samples, with ranks at equal distances."""
    count = max(min(count, len(ranked)), 0)
    return [ranked[((2 * number + 1) * len(ranked) - 1) // (2 * count)] for number in range(count)]
