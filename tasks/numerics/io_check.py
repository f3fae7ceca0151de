"""The check that the device takes its inputs and returns its outputs in the same form as the model.

A mistake in order, axes, type or units is found if the model with this mistake explains the device's outputs better
than the model without it. The model without it is eager PyTorch, or the design: the same program on the host, with the
rounding that the lowering recorded. Of the two, the one counts that is nearer to the device. Without the design,
rounding that hardly depends on the order of the axes, as in a network with a global pooling, looks like a mistake.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qnnsweep.tasks.numerics.io_mistakes import layouts, orders
from qnnsweep.tasks.records import ExportedMethod, IoCheck, TensorSpec
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.records.vocabulary import ProbeSide, ProbeStatus

Array = NDArray[Any]
Tensors = Mapping[str, Array]
Outputs = Sequence[Sequence[Array]]
"""The final outputs of each sample."""

_ALIKE = 1e-4  # the relative error (40 dB) up to which a mistake changes the outputs too little to be detected
_EXPLAINED = 0.1  # the relative error (10 dB) up to which a mistake explains the outputs
_BETTER = 0.1  # if the mistake was made, the largest error with it, as a share (10 dB) of the error without it
_DISTINGUISHED = 2.0  # if the mistake was not made, the least error with it, divided by the error without it (3 dB)
_FAR_OFF = 0.25  # the least relative error of outputs in other units, where every element is far off
_LINE = 0.01  # the relative error up to which another type, or other units, explain the outputs
_FEWEST_ON_A_LINE = 8  # no line is fitted to fewer distinct elements
_LARGEST = 1e100  # no line is fitted to larger elements


@dataclass(frozen=True, slots=True)
class _Checked:
    """A result, and what it needs to be compared with its rivals: the results of mistakes that exclude this one."""

    result: IoCheck
    rivals: str = ""  # the group of mistakes of which a program has one at most
    wrong: Sequence[Array] = ()  # the outputs of eager PyTorch after the mistake, on the sample of the result


def check_io(
    exported: ExportedMethod,
    eager: Tensors,
    mistaken: Tensors,
    device: Tensors,
    design: Tensors | None = None,
    edge: Tensors | None = None,
) -> tuple[IoCheck, ...]:
    """Return one result per possible mistake. Of mistakes that exclude each other, at most one fails.

    `eager`, `device`, `design`, `edge`: final outputs with keys `<sample>/<output index>`, of eager PyTorch, of the
    device, of the design, and of the design without its rounding of activations. `design` and `edge` are None if the
    host cannot compute them. `mistaken`: eager PyTorch's outputs after each mistake of `exported.input_mistakes`, with
    keys `<mistake index>/<output index>`.
    """
    count, samples = len(exported.outputs), range(len(exported.sample_names))

    def outputs(tensors: Tensors) -> Outputs:
        return [_outputs_of(tensors, sample, count) for sample in samples]

    def checked(actual: Tensors, design: Tensors | None = None) -> list[_Checked]:
        right, designed = outputs(eager), None if design is None else outputs(design)
        return [
            *_check_inputs(exported, mistaken, outputs(actual), right, designed),
            *_check_outputs(exported.outputs, outputs(actual), right, designed),
        ]

    with np.errstate(over="ignore", invalid="ignore"):  # any bytes can be read as floats
        checks = checked(device)
        if design is not None:
            # A mistake that the lowering made is in its design, too: there, only eager PyTorch is right.
            of_lowering = checked(edge) if edge is not None and any(map(_has_failed, checks)) else []
            lowered = {check.result.mistake for check in of_lowering if _has_failed(check)}
            by_design = {check.result.mistake: check for check in checked(device, design)}
            checks = [check if check.result.mistake in lowered else by_design[check.result.mistake] for check in checks]
        return tuple(_without_rivals(checks))


def _has_failed(check: _Checked) -> bool:
    return check.result.status == "failed"


def _check_inputs(
    exported: ExportedMethod, mistaken: Tensors, actual: Outputs, right: Outputs, design: Outputs | None
) -> Iterator[_Checked]:
    for index, mistake in enumerate(exported.input_mistakes):
        sample = mistake.sample
        if mistake.refused is not None:
            yield _Checked(io_result("input", mistake.name, sample, "refused", (np.inf, np.inf), mistake.refused))
        else:
            wrong = _outputs_of(mistaken, index, len(exported.outputs))
            rights = [right[sample]] if design is None else [right[sample], design[sample]]
            result = check_mistake("input", mistake.name, sample, actual[sample], rights, [wrong])
            yield _Checked(result, "input", wrong)


def _check_outputs(
    specs: Sequence[TensorSpec], actual: Outputs, right: Outputs, design: Outputs | None
) -> Iterator[_Checked]:
    rights = [right] if design is None else [right, design]
    for order in orders(specs):
        name = f"the outputs come in the order {[specs[index].name for index in order]}"
        wrongs = [[[outputs[index] for index in order] for outputs in explained] for explained in rights]
        yield _check_clearest_sample(name, actual, rights, wrongs, "order")
    for index, spec in enumerate(specs):
        device = [[outputs[index]] for outputs in actual]
        alone = [[[outputs[index]] for outputs in explained] for explained in rights]
        for axes in layouts(spec.shape):
            name = f"output {spec.name} is laid out in the axis order {list(axes)}"
            wrongs = [[[_laid_out(output, axes)] for (output,) in explained] for explained in alone]
            yield _check_clearest_sample(name, device, alone, wrongs, f"layout {index}")
        name = f"output {spec.name} is of another type or in other units"
        explained = [[output for (output,) in outputs] for outputs in alone]
        yield _Checked(_check_type_and_units(name, [output for (output,) in device], explained))


def _check_clearest_sample(
    name: str, actual: Outputs, rights: Sequence[Outputs], wrongs: Sequence[Outputs], rivals: str
) -> _Checked:
    """Check the mistake on the sample whose outputs the mistake would change most."""
    changes = [relative_error(*outputs) for outputs in zip(wrongs[0], rights[0], strict=True)]
    sample = max(range(len(changes)), key=changes.__getitem__)
    right, wrong = ([outputs[sample] for outputs in explained] for explained in (rights, wrongs))
    return _Checked(check_mistake("output", name, sample, actual[sample], right, wrong), rivals, wrong[0])


def check_mistake(
    side: ProbeSide,
    name: str,
    sample: int,
    actual: Sequence[Array],
    rights: Sequence[Sequence[Array]],
    wrongs: Sequence[Sequence[Array]],
) -> IoCheck:
    """Check whether one of `wrongs` explains `actual` better than all of `rights` do.

    `actual`: the device's outputs on one sample. `rights`: the outputs on this sample of eager PyTorch, then those of
    the design, if there is one. `wrongs`: the same after the mistake, as far as they are known.
    """
    error = min(relative_error(actual, right) for right in rights)
    error_if_mistaken = min(relative_error(actual, wrong) for wrong in wrongs)
    if relative_error(wrongs[0], rights[0]) <= _ALIKE or error == error_if_mistaken == 0:
        status: ProbeStatus = "blind"
    elif error_if_mistaken <= _EXPLAINED and error_if_mistaken <= _BETTER * error:
        status = "failed"
    elif error < np.inf and error * _DISTINGUISHED <= error_if_mistaken:
        status = "passed"
    else:
        status = "unclear"
    return io_result(side, name, sample, status, (error, error_if_mistaken), None)


def _without_rivals(checks: Sequence[_Checked]) -> Iterator[IoCheck]:
    """Yield the results, of which at most one per group of rivals fails.

    A failed check stays so if its mistake explains the outputs clearly better than every rival that failed. Rivals with
    the same outputs cannot be told apart: the first of them fails and names the others.
    """
    for check in checks:
        failed = [other for other in checks if check.rivals and other.rivals == check.rivals and _has_failed(other)]
        if not _has_failed(check) or len(failed) < 2:
            yield check.result
            continue
        alike = [other for other in failed if other is check or _is_alike(check, other)]
        least, mistaken = _error(check), min((_error(other) for other in failed if other not in alike), default=np.inf)
        if alike[0] is not check or least * _DISTINGUISHED > mistaken:
            yield replace(check.result, status="unclear")
        else:
            others = "; or ".join(other.result.mistake for other in alike[1:])
            yield replace(check.result, detail=f"or {others}" if others else check.result.detail)


def _is_alike(check: _Checked, other: _Checked) -> bool:
    same = check.result.sample == other.result.sample
    return same and relative_error(check.wrong, other.wrong) <= _ALIKE


def _error(check: _Checked) -> float:
    error = check.result.relative_error_mistaken
    return np.inf if error is None else error


def relative_error(actual: Sequence[Array], reference: Sequence[Array]) -> float:
    """Return the squared error divided by the reference's energy, averaged over the references that have energy.

    The result is infinite if an element is not finite, if the sizes differ, or if a reference of zeros has an error.
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


def _check_type_and_units(name: str, actual_outputs: Sequence[Array], rights: Sequence[Sequence[Array]]) -> IoCheck:
    """Check whether an output's bytes are of another type, or its values in other units, for example quantized."""
    results: list[IoCheck] = []
    for sample, (actual, *explained) in enumerate(zip(actual_outputs, *rights, strict=True)):
        right = explained[0]
        error = min(relative_error([actual], [other]) for other in explained)
        readings = list(_readings(actual, right))
        errors = [relative_error([values], [right]) for _, values in readings]
        # The first, simplest reading that explains the output, otherwise the reading with the least error.
        chosen = next((number for number, share in enumerate(errors) if share <= _LINE), int(np.argmin(errors)))
        error_if_mistaken, detail = errors[chosen], readings[chosen][0]
        wrong = error >= _FAR_OFF and error_if_mistaken <= _LINE
        status: ProbeStatus = "failed" if wrong else "passed" if error < _FAR_OFF else "unclear"
        results.append(io_result("output", name, sample, status, (error, error_if_mistaken), detail if wrong else None))
    # One right sample rules the mistake out, because the mistake would affect all samples.
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
    """Return `actual`, scaled and shifted to fit `right` by least squares; None if a fit would prove nothing."""
    x, y = actual.astype(np.float64).ravel(), right.astype(np.float64).ravel()
    finite = x.size == y.size and np.isfinite(x).all() and np.isfinite(y).all()
    if not finite or np.abs(x).max(initial=0) >= _LARGEST or np.unique(x).size < _FEWEST_ON_A_LINE:
        return None
    # No solver of linear equations is used, because a solver may not converge.
    x /= float(np.abs(x).max())  # the squares of small numbers underflow: integers read as floats are subnormal
    x -= x.mean()
    x /= float(np.abs(x).max())  # the differences can be small, too
    return y.mean() + float(np.dot(x, y - y.mean()) / np.dot(x, x)) * x


def _laid_out(output: Array, axes: Sequence[int]) -> Array:
    return np.transpose(output, axes).reshape(output.shape)


def _outputs_of(tensors: Tensors, sample: int, count: int) -> list[Array]:
    return [tensors[tensor_key(sample, index)] for index in range(count)]


def io_result(
    side: ProbeSide,
    name: str,
    sample: int,
    status: ProbeStatus,
    errors: tuple[float | None, float | None],
    detail: str | None,
) -> IoCheck:
    """Return the result. `errors`: the errors without and with the mistake. A non-finite error becomes None."""
    error, error_if_mistaken = (None if error is None or not np.isfinite(error) else error for error in errors)
    return IoCheck(
        side=side,
        mistake=name,
        sample=sample,
        status=status,
        relative_error=error,
        relative_error_mistaken=error_if_mistaken,
        detail=detail,
    )
