"""Whether the device takes inputs and gives outputs as the model does: no mistake of order, axes, type or units
explains its answers better than the model itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.numerics.io_mistakes import layouts, orders
from tasks.records import ExportedModel, IoCheck, TensorSpec
from tasks.records.keys import tensor_key
from tasks.records.vocabulary import ProbeSide, ProbeStatus

Array = NDArray[Any]
Tensors = Mapping[str, Array]

# Of the answer's energy, as squared error: 40, 10 and 10 dB; then the factor between the two explanations, 3 dB.
_ALIKE = 1e-4
_EXPLAINED = 0.1
_BETTER = 0.1
_TELLS_APART = 2.0
# In other units everything is off, and fewer elements than this always lie on a line.
_FAR_OFF = 0.25
_LINE = 0.01
_FEWEST_ON_A_LINE = 8
_LARGEST = 1e100


def probe(exported: ExportedModel, eager: Tensors, mistaken: Tensors, device: Tensors) -> tuple[IoCheck, ...]:
    """One result for each mistake that could have been made.

    `eager` and `device`: final outputs, keys `<sample>/<output index>`. `mistaken`: what eager PyTorch answers after
    each of `exported.input_mistakes` at the inputs, keys `<mistake index>/<output index>`.
    """
    return (*_inputs(exported, eager, mistaken, device), *_outputs(exported, eager, device))


def _inputs(exported: ExportedModel, eager: Tensors, mistaken: Tensors, device: Tensors) -> Iterator[IoCheck]:
    for index, mistake in enumerate(exported.input_mistakes):
        if mistake.refused is not None:
            yield _result("input", mistake.name, mistake.sample, "refused", None, None, mistake.refused)
            continue
        count = len(exported.outputs)
        own, answer = _of(eager, mistake.sample, count), _of(device, mistake.sample, count)
        yield judged("input", mistake.name, mistake.sample, answer, own, _of(mistaken, index, count))


def _outputs(exported: ExportedModel, eager: Tensors, device: Tensors) -> Iterator[IoCheck]:
    count, specs = len(exported.outputs), exported.outputs
    samples = range(len(exported.sample_names))
    for order in orders(specs):
        name = f"the outputs come in the order {[specs[index].name for index in order]}"
        changed = [[_of(eager, sample, count)[index] for index in order] for sample in samples]
        yield _clearest(name, eager, device, changed, count)
    for index, spec in enumerate(specs):
        for axes in layouts(spec.shape):
            name = f"output {spec.name} is laid out in the axis order {list(axes)}"
            changed = [_laid_out(_of(eager, sample, count), index, axes) for sample in samples]
            yield _clearest(name, eager, device, changed, count)
        yield _clearest_reading(spec, index, eager, device, len(samples))


def _clearest(name: str, eager: Tensors, device: Tensors, changed: Sequence[list[Array]], count: int) -> IoCheck:
    """Judged on the sample in which the mistake would change most."""
    sample = max(range(len(changed)), key=lambda each: relative_error(changed[each], _of(eager, each, count)))
    return judged("output", name, sample, _of(device, sample, count), _of(eager, sample, count), changed[sample])


def judged(
    side: ProbeSide, name: str, sample: int, answer: Sequence[Array], own: Sequence[Array], mistaken: Sequence[Array]
) -> IoCheck:
    """`answer` is the device's, `own` the model's, `mistaken` the model's after the mistake."""
    error, mistaken_error = relative_error(answer, own), relative_error(answer, mistaken)
    if relative_error(mistaken, own) <= _ALIKE:
        status: ProbeStatus = "blind"
    elif mistaken_error <= _EXPLAINED and mistaken_error <= _BETTER * error:
        status = "failed"
    elif error < np.inf and error * _TELLS_APART <= mistaken_error:
        status = "passed"
    else:
        status = "unclear"
    return _result(side, name, sample, status, error, mistaken_error, None)


def relative_error(actual: Sequence[Array], reference: Sequence[Array]) -> float:
    """Squared error over the reference's energy, the mean of all outputs that have any; infinite if not finite."""
    shares: list[float] = []
    for a, r in zip(actual, reference, strict=True):
        x, y = a.astype(np.float64).ravel(), r.astype(np.float64).ravel()
        if x.size != y.size or not (np.isfinite(x).all() and np.isfinite(y).all()):
            return np.inf
        with np.errstate(over="ignore"):
            energy, error = float(np.dot(y, y)), float(np.dot(x - y, x - y))
        if energy:
            shares.append(error / energy if np.isfinite(error) and np.isfinite(energy) else np.inf)
        elif error:
            shares.append(np.inf)
    return float(np.mean(shares)) if shares else 0.0


def _clearest_reading(spec: TensorSpec, index: int, eager: Tensors, device: Tensors, samples: int) -> IoCheck:
    """Bytes read as another type than they are, or real values in other units: quantization codes, for example."""
    name = f"output {spec.name} is of another type or in other units"
    found: list[IoCheck] = []
    for sample in range(samples):
        answer, own = device[tensor_key(sample, index)], eager[tensor_key(sample, index)]
        error = relative_error([answer], [own])
        readings = list(_readings(answer, own))
        errors = [relative_error([each], [own]) for _, each in readings]
        # The plainest reading that explains the answer, else the one that comes nearest.
        place = next((place for place, each in enumerate(errors) if each <= _LINE), int(np.argmin(errors)))
        best, said = errors[place], readings[place][0]
        wrong = error >= _FAR_OFF and best <= _LINE
        status: ProbeStatus = "failed" if wrong else "passed" if error < _FAR_OFF else "unclear"
        found.append(_result("output", name, sample, status, error, best, said if wrong else None))
    # One sample that is right rules the mistake out: it would be made for all.
    return min(found, key=lambda result: ("passed", "unclear", "failed").index(result.status))


def _readings(answer: Array, own: Array) -> Iterator[tuple[str, Array]]:
    kinds = [(f"its bytes are {kind}", answer.view(kind)) for kind in _same_width(answer.dtype)]
    yield from kinds
    for name, each in (("it is in other units", answer), *((f"{name}, in other units", each) for name, each in kinds)):
        line = _on_a_line(each, own)
        if line is not None:
            yield name, line


def _same_width(dtype: np.dtype[Any]) -> list[str]:
    kinds = {1: ("int8", "uint8"), 2: ("float16", "int16", "uint16"), 4: ("float32", "int32", "uint32")}
    wider = {8: ("float64", "int64", "uint64")}
    return [kind for kind in (kinds | wider)[dtype.itemsize] if np.dtype(kind) != dtype]


def _on_a_line(answer: Array, own: Array) -> Array | None:
    """The answer scaled and shifted to lie nearest to the model's; None where that says nothing."""
    x, y = answer.astype(np.float64).ravel(), own.astype(np.float64).ravel()
    sane = x.size == y.size and np.isfinite(x).all() and np.isfinite(y).all() and np.abs(x).max(initial=0) < _LARGEST
    if not sane or np.unique(x).size < _FEWEST_ON_A_LINE:
        return None
    scale, shift = np.polyfit(x, y, 1)
    return scale * x + shift


def _laid_out(outputs: list[Array], index: int, axes: Sequence[int]) -> list[Array]:
    own = outputs[index]
    return [*outputs[:index], np.transpose(own, axes).reshape(own.shape), *outputs[index + 1 :]]


def _of(tensors: Tensors, sample: int, count: int) -> list[Array]:
    return [tensors[tensor_key(sample, index)] for index in range(count)]


def _result(
    side: ProbeSide,
    name: str,
    sample: int,
    status: ProbeStatus,
    error: float | None,
    mistaken: float | None,
    detail: str | None,
) -> IoCheck:
    return IoCheck(
        side=side,
        mistake=name,
        sample=sample,
        status=status,
        relative_error=_finite(error),
        relative_error_mistaken=_finite(mistaken),
        detail=detail,
    )


def _finite(number: float | None) -> float | None:
    return number if number is not None and np.isfinite(number) else None
