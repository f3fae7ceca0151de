"""What different methods write into a state for the same tokens: a prefill, and the decode steps that it replaces."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from qnnsweep.tasks.numerics.metrics import snr_db
from qnnsweep.tasks.records import StateLink

Array = NDArray[Any]
Place = tuple[int, int]
Key = tuple[tuple[int, ...], str, int]
"""The tokens up to a column, and the method and the input that read it."""
Read = tuple[Place, str, Sequence[int], Sequence[Array], int | None]
"""A step: its place, its method, the tokens that it read, its outputs, and how many of the new columns count."""


@dataclass(frozen=True, slots=True)
class OtherMethod:
    """The columns of a step against those that another method wrote after the same tokens."""

    differing: float  # share of the elements
    snr_db: float | None  # the lowest of all states; None if all columns are equal


def other_methods(steps: Iterable[Read], links: Sequence[StateLink]) -> dict[Place, OtherMethod]:
    """Compare the columns of each step with those of another method. A step without such columns is left out."""
    written: defaultdict[Key, dict[str, Array]] = defaultdict(dict)
    columns: defaultdict[Place, list[tuple[Key, str, Array]]] = defaultdict(list)
    texts: defaultdict[int, list[int]] = defaultdict(list)
    for place, method, tokens, outputs, keep in steps:
        text = texts[place[0]]
        before = len(text)
        text.extend(tokens)
        for link in links:
            if link.method != method or link.update == "replace":
                continue
            output = outputs[link.output]
            count = output.shape[link.axis] if keep is None else keep
            for column in range(min(count, len(tokens))):
                key = tuple(text[: before + column + 1]), link.to_method, link.input
                value = output.take(column, link.axis)
                written[key].setdefault(method, value)
                columns[place].append((key, method, value))
    compared = {place: _compared(listed, written) for place, listed in columns.items()}
    return {place: other for place, other in compared.items() if other is not None}


def _compared(
    columns: Sequence[tuple[Key, str, Array]], written: Mapping[Key, Mapping[str, Array]]
) -> OtherMethod | None:
    pairs = [
        (value, other)
        for key, method, value in columns
        for name, other in written[key].items()
        if name != method and other.shape == value.shape
    ]
    if not pairs:
        return None
    ratios = [ratio for value, other in pairs if (ratio := snr_db(value, other)) is not None]
    differing = sum(int((value != other).sum()) for value, other in pairs)
    return OtherMethod(differing / sum(value.size for value, _ in pairs), min(ratios, default=None))
