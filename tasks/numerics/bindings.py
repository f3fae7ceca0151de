"""The check that a final output has the value that its producer logged: exchanged, stale and mis-bound outputs.

The producer of an output is the operator whose value the output is. The debug program logs this value and returns the
output: if they differ, something between them is wrong. The bytes of the output say what: they are those of another
output, of the same output of an earlier sample, or of another operator.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qnnsweep.tasks.numerics.io_check import io_result, relative_error
from qnnsweep.tasks.records import IoCheck
from qnnsweep.tasks.records.vocabulary import ProbeStatus

Array = NDArray[Any]

_SAME = 1e-4  # the relative error (40 dB) up to which an output is the value that was logged
_OTHER = 1e-2  # the least relative error (20 dB) of an output that is not this value
_BETTER = 0.5  # the largest error of the producer against the reference, as a share of that of the output
_FEWEST = 2  # the least number of elements that are compared, except in a buffer that has no more
_FORMS = {
    "f": ("float32", "float16"),
    "i": ("int32", "int64"),
    "u": ("int32", "int64", "uint8"),
    "b": ("bool", "uint8"),
}
"""By the kind of a value, the types in which a device may return it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """A final output of the debug program for one sample. `logged`: the value of its producer; None if not logged."""

    name: str
    producer: str
    output: Array
    logged: Array | None
    shipped: Array  # the output of the shipping program
    reference: Array  # the right output: that of the design or of eager PyTorch


@dataclass(frozen=True, kw_only=True, slots=True)
class Others:
    """Other logged values of which an output may have the bytes.

    `earlier`: the values of the output's producer for earlier samples, the latest first. `operators`: by name.
    """

    earlier: Sequence[Array]
    operators: Mapping[str, Array]


def check_bindings(sample: int, outputs: Sequence[Bound], others: Mapping[int, Others]) -> Iterator[IoCheck]:
    """Yield one result per final output of a sample. `others`: by the number of an output that `differs`."""
    for number, bound in enumerate(outputs):
        name = f"output {bound.name} is not the value of its producer {bound.producer}"
        if bound.logged is None:
            yield io_result("output", name, sample, "blind", (None, None), None)
            continue
        error = _error(bound.output, bound.logged)
        if not differs(bound):
            yield io_result("output", name, sample, "passed" if error <= _SAME else "unclear", (error, None), None)
            continue
        why = _explained(number, outputs, others[number])
        wrong = (why is not None or _is_shipped(bound)) and _is_logged_right(bound)
        if _error(bound.shipped, bound.logged) < _OTHER:
            wrong, why = False, "only in the debug program"
        yield io_result("output", name, sample, "failed" if wrong else "unclear", (error, None), why)


def differs(bound: Bound) -> bool:
    """Return whether an output is clearly not the value that its producer logged."""
    return bound.logged is not None and _error(bound.output, bound.logged) >= _OTHER


def worst_bindings(checks: Sequence[IoCheck]) -> Iterator[IoCheck]:
    """Yield the worst result per output of the results of all samples."""
    order: tuple[ProbeStatus, ...] = ("blind", "passed", "unclear", "failed")
    by_name: dict[str, IoCheck] = {}
    for check in checks:
        before = by_name.setdefault(check.mistake, check)
        if order.index(check.status) > order.index(before.status):
            by_name[check.mistake] = check
    yield from by_name.values()


def _explained(number: int, outputs: Sequence[Bound], others: Others) -> str | None:
    """Return of what an output has the bytes; None if it is not known."""
    bound = outputs[number]
    if bound.logged is not None and (form := _is_of(bound.output, bound.logged)):
        return f"its bytes are {form}"
    for other_number, other in enumerate(outputs):
        if other_number != number and other.logged is not None and _is_of(bound.output, other.logged):
            back = bound.logged is not None and _is_of(other.output, bound.logged)
            return f"exchanged with output {other.name}" if back else f"it is the value of output {other.name}"
    for before, earlier in enumerate(others.earlier, start=1):
        if _is_of(bound.output, earlier):
            return f"stale: it is the value of {f'{before} samples' if before > 1 else 'the sample'} before"
    for operator, value in others.operators.items():
        if _is_of(bound.output, value):
            return f"mis-bound: it is the value of {operator}"
    return None


def _is_of(output: Array, value: Array) -> str | None:
    """Return the type in which the first bytes of an output are the elements of a value; None if there is none."""
    content = np.ascontiguousarray(output).tobytes()
    flat = value.ravel()
    if np.unique(flat).size < 2 and not flat.any():
        return None  # zeros are in many buffers
    for form in _FORMS.get(value.dtype.kind, ()):
        size = np.dtype(form).itemsize
        count = min(flat.size, len(content) // size)
        if count * size * 2 < min(len(content), flat.size * size) or (count < _FEWEST and len(content) > 2 * size):
            continue  # a few elements prove nothing about a larger buffer
        read = np.frombuffer(content, form, count)
        if value.dtype.kind != "f":
            same = np.array_equal(read, flat[:count].astype(form))
        else:
            same = relative_error([read], [flat[:count]]) <= _SAME
        if same:
            return form
    return None


def _is_shipped(bound: Bound) -> bool:
    """Return whether the shipping program has the same output. An overflow is no evidence: the log may show it less."""
    if bound.output.dtype.kind == "f" and not np.isfinite(bound.output).all():
        return False
    return np.array_equal(bound.output, bound.shipped, equal_nan=bound.output.dtype.kind == "f")


def _is_logged_right(bound: Bound) -> bool:
    """Return whether the producer's value is clearly nearer to the right one than the output: otherwise, the log of the
    producer may be what is exchanged or stale."""
    assert bound.logged is not None, "a value that was not logged differs from no output"
    error = _error(bound.logged, bound.reference)
    return bool(np.isfinite(error)) and error <= _BETTER * _error(bound.output, bound.reference)


def _error(actual: Array, reference: Array) -> float:
    """Return the relative error of floats, and the share of elements that differ of integers and booleans.

    The same infinity or NaN on both sides is no error.
    """
    if actual.size != reference.size:
        return np.inf
    if reference.dtype.kind == "f":
        left, right = actual.ravel(), reference.ravel()
        same = ~np.isfinite(right) & ((left == right) | (np.isnan(left) & np.isnan(right)))
        return relative_error([left[~same]], [right[~same]])
    return float(np.count_nonzero(actual.ravel() != reference.ravel())) / max(actual.size, 1)
