"""The parts of a final output that vary in eager PyTorch and are constant on the device: a failure or a resolution.

An SNR over a whole output hides a dead part, if the part is small beside the others. A part is a slice along an axis,
or the elements that one operator wrote, for example the scores of a detector that returns them in one tensor with the
boxes. A healthy program has constant parts too: saturated probabilities, channels that are rarely active, values below
one step of the output's grid. Therefore a part is dead only if eager PyTorch's values vary clearly more than the noise:

- the step of the output's grid, and that of an 8-bit grid of the whole output, whatever the scheme;
- the error of the slices that are not constant;
- for the elements of one operator, only the step of an 8-bit grid of their own: such a grid would have kept them, and
  the grid that they share with others has lost them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qnnsweep.tasks.numerics.io_check import io_result
from qnnsweep.tasks.records import IoCheck
from qnnsweep.tasks.records.vocabulary import ProbeStatus

Array = NDArray[Any]

NO_DEPENDENCE = "does not depend on the input"
"""The end of the mistake that is checked for a whole output."""
_CLEARLY = 4.0  # elements deviate clearly if they deviate by more than this many times the noise
_FEWEST_CLEAR = 3  # the least number of elements that deviate clearly in a dead part
_FEWEST = 8  # the least number of elements, of all samples together, of a slice that is judged, or of integers
_OWN_GRID = 256  # the number of values of a grid that a part of its own would have
_FINE = 2048  # the number of steps below a value in float16
_TYPICAL = 0.15  # the least deviation of a dead slice, as a share of that of all elements of its operator
_SUBSTANTIAL = 1 / 8  # the least share of the elements of an operator that are in dead slices along one axis,
_MANY = 128  # unless a dead slice has this many elements, of all samples together
_CHANGED = 0.5  # the least share of the integers that differ from the device's constant


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The elements of an output that one operator wrote. `mask`: of the output's shape."""

    operator: str
    mask: Array


@dataclass(frozen=True, kw_only=True, slots=True)
class Assembly:
    """How a final output is assembled. `step`: of its grid; 0 without a grid. `parts`: none if it is not assembled."""

    step: float = 0.0
    parts: Sequence[Part] = ()


@dataclass(frozen=True, slots=True)
class _Dead:
    """A part of an output, constant on the device, and whether its variation in eager PyTorch is clear.

    `design_varies`: the design of a whole output must vary clearly; None if the design is not known.
    """

    what: str
    clear: bool
    eager: Array
    device: Array
    design_varies: bool | None

    @property
    def of_the_scheme(self) -> bool:
        """Return whether the design, which follows from the scheme, does not vary clearly either."""
        return self.clear and self.design_varies is False


def check_dead_parts(
    name: str, eager: Array, device: Array, design: Array | None, assembly: Callable[[], Assembly]
) -> Iterator[IoCheck]:
    """Yield whether an output depends on the input, and whether a part of it is constant.

    `eager`, `device`, `design`: the output of all samples, along the first axis. `design`: None if it is not known.
    `assembly`: called only if something is constant.
    """
    dependence, part = f"output {name} {NO_DEPENDENCE}", f"a part of output {name} is constant"
    if eager.shape != device.shape or not eager.size or not (_finite(eager) and _finite(device)):
        yield _check(dependence, "unclear", None)
        yield _check(part, "unclear", None)
        return
    if eager.dtype.kind != "f":
        yield _integers(dependence, eager, device)
        return
    found = list(_constant_parts(eager, device, design, assembly))
    for mistake, whole in ((dependence, True), (part, False)):
        dead = [each for each in found if (each.what == "") == whole]
        same = _same_in_samples(eager) if whole else _same(eager)
        status: ProbeStatus = "blind" if same else "coarse" if dead else "passed"
        if clear := [each for each in dead if each.clear]:
            status = "failed"
        of_the_scheme = status == "failed" and all(each.of_the_scheme for each in clear)
        yield replace(_check(mistake, status, None if same else _described(clear or dead)), of_the_scheme=of_the_scheme)


def _constant_parts(
    eager: Array, device: Array, design: Array | None, assembly: Callable[[], Assembly]
) -> Iterator[_Dead]:
    """Yield what is constant on the device and varies in eager PyTorch. The whole output is named by no text."""
    axes = [axis for axis in range(1, device.ndim) if device.shape[axis] > 1]
    constant = {axis: _constant_slices(device, axis) for axis in axes}
    fixed = len(device) > 1 and _same_in_samples(device)
    if not fixed and not _same(device) and not any(slices.any() for slices in constant.values()):
        return
    assembled = assembly()
    whole = eager.astype(np.float64), device.astype(np.float64)
    if fixed:
        dead = _whole("", *whole, design, max(assembled.step, _own_step(whole[0])))
        if design is not None and dead.design_varies:
            # The device loses what its design has: no rounding of the scheme is an excuse. A design that varies by the
            # last steps of its grid has as little as the device.
            largest = float(np.abs(design).max())
            lost = _whole("", design.astype(np.float64), whole[1], None, max(assembled.step, largest / _FINE))
            dead = replace(dead, clear=dead.clear or lost.clear, design_varies=lost.clear or not dead.clear)
        yield dead
        return
    if _same(device):
        yield _whole("all elements", *whole, design, max(assembled.step, _own_step(whole[0])))
        return
    for part in assembled.parts:
        yield from _constant_in(part, *whole, design, assembled.step)
    if not assembled.parts:
        noise = max(assembled.step, _own_step(whole[0]))
        for axis, slices in constant.items():
            yield from _slices(axis, slices, *whole, design, lambda rms, noise=noise: max(noise, rms))


def _constant_in(part: Part, eager: Array, device: Array, design: Array | None, step: float) -> Iterator[_Dead]:
    """Yield the elements that one operator wrote if all are constant, otherwise the slices of them that are."""
    mine = tuple(None if values is None else values[:, part.mask] for values in (eager, device, design))
    if mine[0] is None or mine[1] is None or _same(mine[0]):
        return
    what = f"the {part.mask.sum()} elements from {part.operator}{_where(part.mask)}"
    if _same(mine[1]) or (len(device) > 1 and _same_in_samples(mine[1])):
        yield _whole(what, mine[0], mine[1], mine[2], _own_step(mine[0]))
        return
    box = _box(part.mask)
    if not part.mask[box].all():
        return
    inside = (slice(None), *box)
    cut, actual, designed = (None if values is None else values[inside] for values in (eager, device, design))
    assert cut is not None, "only the design can be missing"
    assert actual is not None, "only the design can be missing"
    own, typical = _own_step(cut), _TYPICAL * float(cut.std())

    def noise(rms: float) -> float:
        # The rounding to the shared grid is no excuse: it is what loses the part.
        return max(own, float(np.sqrt(max(0.0, rms**2 - (step / 2) ** 2))))

    for axis in (axis for axis in range(1, actual.ndim) if actual.shape[axis] > 1):
        first = box[axis - 1].start
        of = f" of {part.operator}"
        dead = [
            replace(each, clear=each.clear and float(each.eager.std()) >= typical)
            for each in _slices(axis, _constant_slices(actual, axis), cut, actual, designed, noise, first, of)
        ]
        elements = sum(each.eager.size for each in dead if each.clear)
        for each in dead:
            substantial = elements >= _SUBSTANTIAL * cut.size or each.eager.size >= _MANY
            yield replace(each, clear=each.clear and substantial)


def _slices(
    axis: int,
    constant: Array,
    eager: Array,
    device: Array,
    design: Array | None,
    noise: Callable[[float], float],
    first: int = 0,
    of: str = "",
) -> Iterator[_Dead]:
    """Yield the constant slices along an axis. `noise`: takes the root mean square error of the other slices."""
    if not constant.any() or constant.all() or eager.size // len(constant) < _FEWEST:
        return
    error = np.moveaxis(device - eager, axis, 0)[~constant]
    error = error[error != 0]
    limit = _CLEARLY * noise(float(np.sqrt(np.mean(error**2))) if error.size else 0.0)
    for number in np.flatnonzero(constant):
        mine = tuple(None if values is None else values.take(number, axis) for values in (eager, device, design))
        if mine[0] is None or mine[1] is None or _same(mine[0]):
            continue
        what = f"slice {first + int(number)} of axis {axis - 1}{of}"
        yield _dead(what, mine[0], mine[1], mine[2], limit)


def _whole(what: str, eager: Array, device: Array, design: Array | None, noise: float) -> _Dead:
    return _dead(what, eager, device, design, _CLEARLY * noise)


def _dead(what: str, eager: Array, device: Array, design: Array | None, limit: float) -> _Dead:
    # What is the same in all samples need not be the same in all elements.
    axis = None if _same(device) else 0
    deviating = np.abs(eager - np.median(eager, axis=axis, keepdims=True)) > limit
    varies = None if design is None else not (_same(design) if axis is None else _same_in_samples(design))
    return _Dead(what, int(np.count_nonzero(deviating)) >= _FEWEST_CLEAR, eager, device, varies)


def _integers(mistake: str, eager: Array, device: Array) -> IoCheck:
    """Return whether integers or booleans depend on the input. A few indices that rarely change prove nothing."""
    if _same(eager) or len(eager) < 2:
        return _check(mistake, "blind", None)
    if not _same_in_samples(device):
        return _check(mistake, "passed", None)
    changed = float(np.count_nonzero(eager != device)) / eager.size
    varied = eager.size >= _FEWEST and changed >= _CHANGED and not _same_in_samples(eager)
    detail = f"the same in all {len(device)} samples, and wrong in {100 * changed:.0f} % of the elements"
    return _check(mistake, "failed" if varied else "coarse", detail if varied else None)


def _described(dead: Sequence[_Dead]) -> str | None:
    if not dead:
        return None
    first = max(dead, key=lambda each: each.eager.size)
    same = f"always {first.device.flat[0]:.4g}" if _same(first.device) else "the same in all samples"
    low, high = float(first.eager.min()), float(first.eager.max())
    texts = [
        f"{first.what + ': ' if first.what else ''}{same} on the device, {low:.4g} to {high:.4g} in eager PyTorch",
        f"{len(dead) - 1} other parts as well" if len(dead) > 1 else None,
        "less than the noise and the steps of its grid" if not first.clear else None,
        "its design varies, so that the compiler or the device loses it" if first.design_varies else None,
        "the same program on the host loses it, too" if first.of_the_scheme else None,
    ]
    return "; ".join(text for text in texts if text)


def _where(mask: Array) -> str:
    """Return the range of a mask along the only axis that it divides; empty if there are several."""
    divided = [(axis, part) for axis, part in enumerate(_box(mask)) if part.stop - part.start < mask.shape[axis]]
    if len(divided) != 1:
        return ""
    ((axis, part),) = divided
    return f" ({part.start} to {part.stop - 1} of axis {axis})"


def _box(mask: Array) -> tuple[slice, ...]:
    """Return the smallest box that has all elements of a mask."""
    ranges = [np.flatnonzero(mask.any(axis=tuple(set(range(mask.ndim)) - {axis}))) for axis in range(mask.ndim)]
    return tuple(slice(int(part[0]), int(part[-1]) + 1) for part in ranges)


def _constant_slices(values: Array, axis: int) -> Array:
    """Return, per slice along an axis, whether it is constant, or equal in all samples."""
    others = tuple(set(range(values.ndim)) - {axis})
    constant: Array = values.min(axis=others) == values.max(axis=others)
    if len(values) > 1:
        constant |= (values.min(axis=0) == values.max(axis=0)).all(axis=tuple(set(range(values.ndim - 1)) - {axis - 1}))
    return constant


def _own_step(values: Array) -> float:
    """Return the step of an 8-bit grid for these values. A grid has the value zero."""
    return (max(float(values.max()), 0.0) - min(float(values.min()), 0.0)) / _OWN_GRID


def _same(values: Array) -> bool:
    return bool((values == values.flat[0]).all())


def _same_in_samples(values: Array) -> bool:
    return bool((values == values[:1]).all())


def _finite(values: Array) -> bool:
    return bool(np.isfinite(values).all())


def _check(mistake: str, status: ProbeStatus, detail: str | None) -> IoCheck:
    return io_result("output", mistake, 0, status, (None, None), detail)
