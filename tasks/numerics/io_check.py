"""Check that the device takes inputs and gives outputs as the model does.

A mistake of order, axes, type or units is found if it explains the device's outputs better than the model itself does.
"""

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

# Relative squared errors: 40 dB, 10 dB and 10 dB; then the least ratio between the two explanations, 3 dB.
_ALIKE = 1e-4
_EXPLAINED = 0.1
_BETTER = 0.1
_TELLS_APART = 2.0
# In other units every element is far off. Fewer elements than this always lie on a line.
_FAR_OFF = 0.25
_LINE = 0.01
_FEWEST_ON_A_LINE = 8
_LARGEST = 1e100


def check_io(exported: ExportedModel, eager: Tensors, mistaken: Tensors, device: Tensors) -> tuple[IoCheck, ...]:
    """Return one result per possible mistake.

    `eager` and `device`: final outputs, keys `<sample>/<output index>`. `mistaken`: eager PyTorch's outputs after each
    of `exported.input_mistakes`, keys `<mistake index>/<output index>`.
    """
    return (*_check_inputs(exported, eager, mistaken, device), *_check_outputs(exported, eager, device))


def _check_inputs(exported: ExportedModel, eager: Tensors, mistaken: Tensors, device: Tensors) -> Iterator[IoCheck]:
    for index, mistake in enumerate(exported.input_mistakes):
        if mistake.refused is not None:
            yield _result("input", mistake.name, mistake.sample, "refused", None, None, mistake.refused)
            continue
        count = len(exported.outputs)
        actual, right = _outputs_of(device, mistake.sample, count), _outputs_of(eager, mistake.sample, count)
        wrong = _outputs_of(mistaken, index, count)
        yield check_mistake("input", mistake.name, mistake.sample, actual, right, wrong)


def _check_outputs(exported: ExportedModel, eager: Tensors, device: Tensors) -> Iterator[IoCheck]:
    count, specs = len(exported.outputs), exported.outputs
    samples = range(len(exported.sample_names))
    for order in orders(specs):
        name = f"the outputs come in the order {[specs[index].name for index in order]}"
        wrong = [[_outputs_of(eager, sample, count)[index] for index in order] for sample in samples]
        yield _check_clearest_sample(name, eager, device, wrong, count)
    for index, spec in enumerate(specs):
        for axes in layouts(spec.shape):
            name = f"output {spec.name} is laid out in the axis order {list(axes)}"
            wrong = [_with_layout(_outputs_of(eager, sample, count), index, axes) for sample in samples]
            yield _check_clearest_sample(name, eager, device, wrong, count)
        yield _check_type_and_units(spec, index, eager, device, len(samples))


def _check_clearest_sample(
    name: str, eager: Tensors, device: Tensors, wrong: Sequence[list[Array]], count: int
) -> IoCheck:
    """Check the mistake on the sample whose outputs it would change most."""
    changes = [relative_error(outputs, _outputs_of(eager, sample, count)) for sample, outputs in enumerate(wrong)]
    sample = max(range(len(wrong)), key=changes.__getitem__)
    actual, right = _outputs_of(device, sample, count), _outputs_of(eager, sample, count)
    return check_mistake("output", name, sample, actual, right, wrong[sample])


def check_mistake(
    side: ProbeSide, name: str, sample: int, actual: Sequence[Array], right: Sequence[Array], wrong: Sequence[Array]
) -> IoCheck:
    """Return whether `wrong` explains `actual` better than `right` does.

    `actual`: the device's outputs; `right`: the model's; `wrong`: the model's after the mistake. All on one sample.
    """
    error, error_if_mistaken = relative_error(actual, right), relative_error(actual, wrong)
    if relative_error(wrong, right) <= _ALIKE:
        status: ProbeStatus = "blind"
    elif error_if_mistaken <= _EXPLAINED and error_if_mistaken <= _BETTER * error:
        status = "failed"
    elif error < np.inf and error * _TELLS_APART <= error_if_mistaken:
        status = "passed"
    else:
        status = "unclear"
    return _result(side, name, sample, status, error, error_if_mistaken, None)


def relative_error(actual: Sequence[Array], reference: Sequence[Array]) -> float:
    """Return the squared error over the reference's energy, averaged over the outputs that have energy.

    Infinite if an element is not finite, if the sizes differ, or if a reference of zeros has an error.
    """
    errors: list[float] = []
    for a, r in zip(actual, reference, strict=True):
        x, y = a.astype(np.float64).ravel(), r.astype(np.float64).ravel()
        if x.size != y.size or not (np.isfinite(x).all() and np.isfinite(y).all()):
            return np.inf
        with np.errstate(over="ignore"):
            energy, error = float(np.dot(y, y)), float(np.dot(x - y, x - y))
        if energy:
            errors.append(error / energy if np.isfinite(error) and np.isfinite(energy) else np.inf)
        elif error:
            errors.append(np.inf)
    return float(np.mean(errors)) if errors else 0.0


def _check_type_and_units(spec: TensorSpec, index: int, eager: Tensors, device: Tensors, samples: int) -> IoCheck:
    """Check for bytes that are interpreted as another type, and for other units, for example quantized values."""
    name = f"output {spec.name} is of another type or in other units"
    results: list[IoCheck] = []
    for sample in range(samples):
        actual, right = device[tensor_key(sample, index)], eager[tensor_key(sample, index)]
        error = relative_error([actual], [right])
        readings = list(_readings(actual, right))
        errors = [relative_error([values], [right]) for _, values in readings]
        # The first, simplest reading that explains the output, otherwise the nearest one.
        chosen = next((number for number, share in enumerate(errors) if share <= _LINE), int(np.argmin(errors)))
        error_if_mistaken, detail = errors[chosen], readings[chosen][0]
        wrong = error >= _FAR_OFF and error_if_mistaken <= _LINE
        status: ProbeStatus = "failed" if wrong else "passed" if error < _FAR_OFF else "unclear"
        results.append(_result("output", name, sample, status, error, error_if_mistaken, detail if wrong else None))
    # One right sample rules the mistake out, because it would affect all samples.
    return min(results, key=lambda result: ("passed", "unclear", "failed").index(result.status))


def _readings(actual: Array, right: Array) -> Iterator[tuple[str, Array]]:
    types = [(f"its bytes are {dtype}", actual.view(dtype)) for dtype in _same_width(actual.dtype)]
    yield from types
    in_units = [("it is in other units", actual), *((f"{name}, in other units", values) for name, values in types)]
    for name, values in in_units:
        line = _on_a_line(values, right)
        if line is not None:
            yield name, line


def _same_width(dtype: np.dtype[Any]) -> list[str]:
    names = {
        1: ("int8", "uint8"),
        2: ("float16", "int16", "uint16"),
        4: ("float32", "int32", "uint32"),
        8: ("float64", "int64", "uint64"),
    }
    return [name for name in names[dtype.itemsize] if np.dtype(name) != dtype]


def _on_a_line(actual: Array, right: Array) -> Array | None:
    """Return the output scaled and shifted by least squares to the model's; None if such a fit means nothing."""
    x, y = actual.astype(np.float64).ravel(), right.astype(np.float64).ravel()
    finite = x.size == y.size and np.isfinite(x).all() and np.isfinite(y).all()
    if not finite or np.abs(x).max(initial=0) >= _LARGEST or np.unique(x).size < _FEWEST_ON_A_LINE:
        return None
    scale, shift = np.polyfit(x, y, 1)
    return scale * x + shift


def _with_layout(outputs: list[Array], index: int, axes: Sequence[int]) -> list[Array]:
    output = outputs[index]
    return [*outputs[:index], np.transpose(output, axes).reshape(output.shape), *outputs[index + 1 :]]


def _outputs_of(tensors: Tensors, sample: int, count: int) -> list[Array]:
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
