"""What a step of a language model computes instead: with another position, another mask, another cache or token.

Eager PyTorch computes a wrong step again with inputs that are altered as one known mistake alters them. If its result
is then that of the device, the mistake is named.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qnnsweep.tasks.numerics.metrics import snr_db
from qnnsweep.tasks.records import StepPlan, TensorSpec
from qnnsweep.tasks.records.vocabulary import StepMistake
from qnnsweep.tasks.toolchain.runner import token_position

Array = NDArray[Any]
Arrays = Sequence[Array]

SUSPECT_DB = 30.0
"""A step whose outputs have a lower introduced SNR is examined."""
WRONG_DB = 20.0
"""New columns of a cache with a lower introduced SNR are wrong."""
EXAMINED = 4
"""How many steps are examined, the worst ones."""
GAIN_DB = 10.0
"""A mistake is named if it raises the lowest SNR of a step by this: it explains nine tenths of the noise."""
EXPLAINED_DB = 15.0
"""The lowest SNR of a step that is explained."""
APART_DB = 1.0
"""By how much a mistake explains a step better than any other."""
_EQUAL_DB = 200.0
_SAME_DB, _DIFFERENT_DB = 40.0, 20.0
_SAME_LENGTHS = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Roles:
    """Which inputs and outputs of a method say what."""

    token: int
    position: int | None
    masks: tuple[int, ...]
    caches: Mapping[int, int]
    """The axis of the positions, by the number of an input that is a cache."""
    scores: int
    written: Mapping[int, int]
    """The axis of the new positions, by the number of an output that is written into a cache."""
    layers: Mapping[int, int]
    """The number of the layer, by the number of such an output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """A step on the device. `keep`: how many of its tokens count."""

    inputs: Arrays
    outputs: Arrays
    keep: int | None
    before: int | None
    """The token that the step before read last."""


def roles_of(plan: StepPlan, method: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Roles | None:
    """Return the roles of the inputs and outputs of a method; None if it reads no tokens or gives no scores.

    The layer of a new column is the last number in the output's name, such as `1.3` or `k_3`.
    """
    token, scores = token_position(plan, method, "input"), token_position(plan, method, "output")
    if token is None or scores is None:
        return None
    appended = [link for link in plan.links if link.update in ("append", "ring", "shift")]
    states = {link.input for link in plan.links if link.to_method == method}
    others = [index for index in range(len(inputs)) if index != token and index not in states]
    tokens = inputs[token].shape
    integers = [index for index in others if "int" in inputs[index].dtype and inputs[index].shape == tokens]
    floats = [index for index in others if "float" in inputs[index].dtype and len(inputs[index].shape) > 2]
    written = {link.output: link.axis for link in appended if link.method == method}
    return Roles(
        token=token,
        position=integers[0] if len(integers) == 1 else None,
        masks=tuple(index for index in floats if inputs[index].shape[-2] == tokens[-1]),
        caches={link.input: link.axis for link in appended if link.to_method == method},
        scores=scores,
        written=written,
        layers={output: int((re.findall(r"\d+", outputs[output].name) or [0])[-1]) for output in written},
    )


def lowest_snr_db(roles: Roles, ran: Ran, outputs: Arrays) -> float:
    """Return the lowest SNR of the device's scores and new columns of caches against other outputs, in dB.

    Rows and columns that are padding do not count. 200 means that all are equal.
    """
    return min(_snr_db(*pair) for pair in _counted(roles, ran, outputs))


def mistake_of(roles: Roles, ran: Ran, run: Callable[[Arrays], Arrays]) -> StepMistake | None:
    """Return the mistake that explains a wrong step; None if none does. `run`: computes the step in eager PyTorch."""
    right = run(ran.inputs)
    least = max(lowest_snr_db(roles, ran, right) + GAIN_DB, EXPLAINED_DB)
    explained: dict[StepMistake, float] = {
        mistake: lowest_snr_db(roles, ran, outputs)
        for mistake, inputs in altered(roles, ran)
        if (outputs := _answer(run, inputs)) is not None
    }
    first, second = sorted(explained, key=lambda mistake: explained[mistake], reverse=True)[:2]
    if explained[first] >= least:
        return first if explained[first] - explained[second] >= APART_DB else None
    return "other_rotation" if _has_other_rotation(roles, ran, right, run) else None


def _answer(run: Callable[[Arrays], Arrays], inputs: Arrays) -> Arrays | None:
    """Return the outputs of a step; None for a position after the last one of the context, which the model refuses."""
    try:
        return run(inputs)
    except IndexError:
        return None


def altered(roles: Roles, ran: Ran) -> Iterator[tuple[StepMistake, list[Array]]]:
    """Yield the mistakes with the inputs that a step would have had."""

    def changed(values: Mapping[int, Array]) -> list[Array]:
        return [values.get(index, value) for index, value in enumerate(ran.inputs)]

    if roles.position is not None:
        position = ran.inputs[roles.position]
        yield "position_later", changed({roles.position: position + position.dtype.type(1)})
        yield "position_earlier", changed({roles.position: np.maximum(position - position.dtype.type(1), 0)})
        yield "position_restarts", changed({roles.position: position - position.min()})
    tokens = ran.inputs[roles.token].shape[-1]
    for name, change in _MASKS.items():
        masks = {index: change(ran.inputs[index], tokens) for index in roles.masks}
        if any(not np.array_equal(mask, ran.inputs[index]) for index, mask in masks.items()):
            yield name, changed(masks)
    for name, shift in _CACHES.items():
        yield name, changed({index: shift(ran.inputs[index], axis) for index, axis in roles.caches.items()})
    if ran.before is not None and tokens == 1:
        yield "token_before", changed({roles.token: np.full_like(ran.inputs[roles.token], ran.before)})


def first_wrong_state(roles: Roles, ran: Ran, right: Arrays) -> int | None:
    """Return the first output whose new columns of a cache are wrong, in the order of the layers; None without one.

    `right`: the outputs of eager PyTorch on the device's inputs.
    """
    pairs = dict(zip([roles.scores, *roles.written], _counted(roles, ran, right), strict=True))
    ordered = sorted(roles.written, key=lambda output: (roles.layers[output], output))
    return next((output for output in ordered if _snr_db(*pairs[output]) < WRONG_DB), None)


def same_whatever_is_read(device: Sequence[Array], eager: Sequence[Array], read: Sequence[Sequence[int]]) -> bool:
    """Return whether the device's scores are the same after different texts, and those of eager PyTorch are not.

    Each argument has one item per sequence. `read`: the tokens.
    """
    if len({tuple(tokens) for tokens in read}) < 2:
        return False
    pairs = [(one, other) for one in range(len(read)) for other in range(one) if read[one] != read[other]]
    alike = min(_snr_db(device[one], device[other]) for one, other in pairs)
    return alike >= _SAME_DB and all(_snr_db(eager[one], eager[other]) < _DIFFERENT_DB for one, other in pairs)


def _counted(roles: Roles, ran: Ran, outputs: Arrays) -> Iterator[tuple[Array, Array]]:
    """Yield the parts that count of the device's and of other outputs: of the scores, and of each new column."""
    rows = slice(ran.keep)
    pair = (ran.outputs[roles.scores], outputs[roles.scores])
    yield tuple(array.reshape(-1, array.shape[-1])[rows] for array in pair)  # type: ignore[misc]
    for output, axis in roles.written.items():
        of_columns = (slice(None),) * (axis % outputs[output].ndim) + (rows,)
        yield ran.outputs[output][of_columns], outputs[output][of_columns]


def _snr_db(actual: Array, reference: Array) -> float:
    if not np.isfinite(actual).all():
        return -_EQUAL_DB
    found = snr_db(actual, reference)
    return _EQUAL_DB if found is None else found


def _hidden(mask: Array) -> Any:
    return mask.min()


def _with_columns(mask: Array, columns: slice, value: Any) -> Array:
    found = mask.copy()
    found[..., columns] = value
    return found


def _without_first(cache: Array, axis: int) -> Array:
    """Return a cache whose columns are one place too early, so that the oldest is missing and the last is zero."""
    found = np.roll(cache, -1, axis)
    found[(slice(None),) * (axis % cache.ndim) + (-1,)] = 0
    return found


def _without_last(cache: Array, axis: int) -> Array:
    """Return a cache without the newest column that is not zero."""
    others = tuple(other for other in range(cache.ndim) if other != axis % cache.ndim)
    written = np.flatnonzero(cache.any(axis=others))
    found = cache.copy()
    if written.size:
        found[(slice(None),) * (axis % cache.ndim) + (written[-1],)] = 0
    return found


_MASKS: dict[StepMistake, Callable[[Array, int], Array]] = {
    "sees_everything": lambda mask, _: np.full_like(mask, mask.max()),
    "sees_later_tokens": lambda mask, tokens: _with_columns(mask, slice(-tokens, None), mask.max()),
    "sees_no_cache": lambda mask, tokens: _with_columns(mask, slice(0, -tokens), _hidden(mask)),
    "mask_moved": lambda mask, _: np.roll(mask, 1, -1),
}
# A cache that is one place too late has the same result as one without its newest column, because attention does not
# depend on the order of the columns; and a mask that hides this column has nearly the same one.
_CACHES: dict[StepMistake, Callable[[Array, int], Array]] = {
    "oldest_missing": _without_first,
    "newest_missing": _without_last,
    "cache_empty": lambda cache, _: np.zeros_like(cache),
}


def _has_other_rotation(roles: Roles, ran: Ran, right: Arrays, run: Callable[[Arrays], Arrays]) -> bool:
    """Return whether the new keys of the first layer have the right lengths, but other directions.

    Its values must be right. The keys are the columns that another position rotates: their lengths along one axis stay.
    """
    if roles.position is None:
        return False
    position, found = ran.inputs[roles.position], False
    others = (
        [*ran.inputs[: roles.position], moved, *ran.inputs[roles.position + 1 :]]
        for moved in (position + 1, position - 1)
    )
    other = next((outputs for inputs in others if (outputs := _answer(run, inputs)) is not None), None)
    if other is None:
        return False
    first = min(roles.layers.values(), default=0)
    for output, axis in ((output, axis) for output, axis in roles.written.items() if roles.layers[output] == first):
        columns = (slice(None),) * (axis % right[output].ndim) + (slice(ran.keep),)
        actual, expected, rotated = (outputs[output][columns] for outputs in (ran.outputs, right, other))
        snr = _snr_db(actual, expected)
        if _snr_db(rotated, expected) > 2 * _DIFFERENT_DB:  # the values, which no position changes
            if snr < WRONG_DB:
                return False
        elif snr < WRONG_DB:
            axes = [axis for axis in range(expected.ndim) if _same_lengths(rotated, expected, axis, 1e-3)]
            found = any(_same_lengths(actual, expected, axis, _SAME_LENGTHS) for axis in axes)
    return found


def _same_lengths(one: Array, other: Array, axis: int, share: float) -> bool:
    if one.shape[axis] < 2:
        return False
    lengths = [np.linalg.norm(array.astype(np.float64), axis=axis) for array in (one, other)]
    return bool(np.allclose(*lengths, rtol=share, atol=share * float(lengths[1].max(initial=0))))
