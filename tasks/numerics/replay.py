"""The replay: every operator is computed again on the device's own inputs, and its error is divided by cause.

With `on_host`, the result of the reference operator on the device's inputs, and `rounded`, the nearest values on the
operator's grid, the error of a value is the sum of three parts:

    actual - reference = (on_host - reference) + (rounded - on_host) + (actual - rounded)
                          inherited            grid               introduced

Unused elements are left out: a compiler that folds a clamp into the preceding operator does not compute the elements
that the clamp discards.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from qnnsweep.tasks.numerics.arithmetic import Departure, departure_of
from qnnsweep.tasks.numerics.dequantize import on_grid
from qnnsweep.tasks.numerics.device_run import CHAIN, DeviceRun
from qnnsweep.tasks.numerics.element_use import Array, CapturedValue, ElementUse, Value
from qnnsweep.tasks.numerics.float_constants import OF_CONSTANTS, FloatConstants
from qnnsweep.tasks.numerics.grid import GridUse, float16_around, grid_errors, grid_use, half_errors
from qnnsweep.tasks.numerics.introduced import Difference, Introduced, introduced_error
from qnnsweep.tasks.numerics.metrics import signed_error, sums_of_finite
from qnnsweep.tasks.records import Gap
from qnnsweep.tasks.records.vocabulary import Cause

IsSuspect = Callable[[int, Introduced], bool]
"""Decides whether an operator's own error is beyond its tolerance."""

_FAR_SMALLER = 0.5  # the share of an error's energy that another explanation leaves, at most
_FELT = 0.25  # an operator whose total error has less than this share of its own error's energy has no error


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """The error of one operator's value on the device, divided by cause. All parts are over the used elements."""

    introduced: Introduced
    by_log: Introduced | None = field(default=None, compare=False, repr=False)
    """The own error if the operator read all values as they were logged; None if another value was assumed."""
    inherited: Gap = field(default_factory=Gap)
    """The error of `on_host`. It is empty if the operator has no reference value."""
    grid_use: GridUse | None = None
    masked: int = 0
    """The number of unused elements that differ."""
    masked_by: tuple[int, ...] = ()
    """The readers that do not use all elements."""
    spans: tuple[int, ...] = ()
    """Earlier operators whose logged value was not used: their error is a part of this operator's error."""
    used_mask: Array | None = field(default=None, compare=False, repr=False)
    """The elements that are used, with the device's value or with the reference's; None if all are used."""
    felt: bool = True
    """Whether the total error contains the introduced error. If not, the logged inputs are not what was read."""
    contradicted: bool = False
    """Whether all readers follow from the host's value and not from the logged value."""
    errors: Mapping[Cause, Array] = field(default_factory=dict["Cause", Array], compare=False, repr=False)
    """The errors that arise at this operator: float32, with the operator's shape.

    At unused elements, those of cause `device` are 0. If the compiler fused the operator with all its readers, there
    are only those of causes `weights` and `bias`. If the log is contradicted, there are none of cause `device`.
    """
    departure: Departure | None = field(default=None, compare=False, repr=False)
    """What the device computed beyond exact rounding, at the used elements; None if the log is contradicted."""
    reads_exact_inputs: bool = False
    """Whether the operator has the model's inputs before they are rounded."""


def replay(
    run: DeviceRun,
    is_suspect: IsSuspect,
    reference: Callable[[int], Array | None] = lambda _: None,
    floats: FloatConstants | None = None,
    with_errors: bool = True,
) -> dict[int, Replayed]:
    """Return the error of every captured operator, by operator index.

    `reference`: returns an operator's value in the reference's own run, None if it is not known. `with_errors`: whether
    `Replayed.errors` and `Replayed.departure` are needed.

    Operators that the host cannot compute again are left out: the `refusals` of the kernels have the reasons.
    """
    attribution = _Attribution(run, is_suspect, reference, floats or FloatConstants(), with_errors)
    operators = {index: attribution.replayed(index) for index in run.on_host}
    by_log = dict(operators)
    for index in [index for index in operators if attribution.may_be_contradicted(by_log, index)]:
        if again := attribution.contradicting_readers(by_log, index):
            rounding = {cause: error for cause, error in operators[index].errors.items() if cause != "device"}
            right = replace(operators[index], contradicted=True, errors=rounding, departure=None)
            operators |= again | {index: right}
    spans = {index: operator.spans for index, operator in operators.items()}
    rounded = [
        index for index, operator in operators.items() if index not in run.unrounded and not operator.contradicted
    ]
    for index in [index for index in rounded if run.is_fused(index, spans)]:
        constants = {cause: error for cause, error in operators[index].errors.items() if cause in OF_CONSTANTS}
        operators[index] = replace(operators[index], errors=constants)
    return operators


def converted(
    captured: CapturedValue, source: Array, reference: Array | None = None, used: Array | None = None
) -> Replayed:
    """Return the error of a value that the device converted to another grid. `source`: the value before it."""
    difference = Difference.between(captured, source)
    return Replayed(
        introduced=introduced_error(difference, used),
        inherited=Gap() if reference is None else sums_of_finite(source, reference, used)[0].gap,
        grid_use=grid_use(captured, source, difference.expected, used, reference, used),
    )


class _Attribution:
    def __init__(
        self,
        run: DeviceRun,
        is_suspect: IsSuspect,
        reference: Callable[[int], Array | None],
        floats: FloatConstants,
        with_errors: bool,
    ) -> None:
        self._run, self._is_suspect, self._reference = run, is_suspect, reference
        self._floats, self._with_errors = floats, with_errors
        self._use = ElementUse(run.kernels, run.captured, run.values)

    def replayed(self, index: int, instead: Mapping[int, Value] | None = None) -> Replayed:
        """Return an operator's error. `instead`: values to compute the operator from, instead of the logged values."""
        run = self._run
        on_host, spans = run.on_host[index], run.spans[index]
        if instead:
            result = run.call(index, instead)
            assert isinstance(result, np.ndarray), "the same call"
            on_host = result
            spans = (*spans, *(source for source in instead if not run.has_logged_conversion(index, source)))
        error = self._own_error(index, on_host)
        by_log = None if instead else error.introduced
        reads_exact_inputs = False
        for depth in range(1, CHAIN + 1):
            if instead or not self._is_suspect(index, error.introduced):
                break
            result, through = run.call_unrounded(index, depth)
            if not through or not isinstance(result, np.ndarray) or not self._is_nearer(index, result, error):
                continue
            fused = self._own_error(index, result)
            if self.explains(index, fused.introduced, error.introduced):
                error, spans = fused, tuple(dict.fromkeys((*spans, *through)))
        if not instead and self._is_suspect(index, error.introduced):
            exact = run.call_on_exact_inputs(index)
            actual = run.values[index]
            if isinstance(exact, np.ndarray) and isinstance(actual, np.ndarray) and self._is_float16(index):
                exact = float16_around(exact, actual)
            if isinstance(exact, np.ndarray) and self._is_nearer(index, exact, error):
                from_exact = self._own_error(index, exact)
                if self.explains(index, from_exact.introduced, error.introduced):
                    error, reads_exact_inputs = from_exact, True
        reference = self._reference(index)
        used, used_reference, inherited, felt = error.used, None, Gap(), True
        if reference is not None:
            if used is not None:
                # An element that is unused on the device counts if the reference's value of it is used.
                used_reference = self._use.read_mask(index, reference.astype(error.on_host.dtype, copy=False))
                used = None if used_reference is None else used | used_reference
            inherited = sums_of_finite(error.on_host, reference, used)[0].gap
            if self._is_suspect(index, error.introduced) and not error.introduced.nonfinite:
                total = sums_of_finite(error.difference.actual, reference, error.used)[0].gap.mse
                introduced = error.introduced.gap.mse
                felt = total is None or introduced is None or total >= _FELT * introduced
        captured = run.captured[index]
        return Replayed(
            introduced=error.introduced,
            by_log=by_log,
            inherited=inherited,
            grid_use=grid_use(captured, error.on_host, error.difference.expected, used, reference, used_reference),
            masked=0 if error.used is None else int(np.count_nonzero(~error.used & error.difference.differing)),
            masked_by=error.masked_by,
            spans=spans,
            used_mask=used,
            felt=felt,
            errors=self._errors(index, error, instead or {}) if self._with_errors else {},
            departure=error.departure if self._with_errors else None,
            reads_exact_inputs=reads_exact_inputs,
        )

    def explains(self, index: int, better: Introduced, worse: Introduced) -> bool:
        """Return whether an operator's error is beyond its tolerance, and within it and far smaller from other values.

        A small error of the operator itself is not far smaller from other values, even if it is within the tolerance.
        """
        if not self._is_suspect(index, worse) or self._is_suspect(index, better):
            return False
        if worse.nonfinite or worse.gap.mse is None or better.gap.mse is None:
            return True
        return better.gap.mse <= _FAR_SMALLER * worse.gap.mse

    def may_be_contradicted(self, operators: Mapping[int, Replayed], index: int) -> bool:
        """Return whether the errors of an operator and, by the log, of all its readers are beyond their tolerances.

        Otherwise, `contradicting_readers` would return no reader, after computing all of them again.
        """
        if not self._is_suspect(index, operators[index].introduced):
            return False
        readers = self._computed_readers(index)
        by_log = {reader: operators[reader].by_log for reader in readers}
        return bool(readers) and all(
            self._is_suspect(reader, error)
            for reader, error in by_log.items()
            if error is not None and not self._run.has_logged_conversion(reader, index)
        )

    def contradicting_readers(self, operators: Mapping[int, Replayed], index: int) -> dict[int, Replayed]:
        """Return the errors of all readers, computed from the right value, if all contradict the logged value.

        `operators`: the errors of all operators, computed from the logged values. The operator has readers.
        """
        readers = self._computed_readers(index)
        expected = self.expected(index)
        by_log = [operators[reader].by_log for reader in readers]
        if not all(map(partial(self.contradicts, index, expected), readers, by_log)):
            return {}
        return {reader: self.replayed(reader, {index: expected}) for reader in readers}

    def _computed_readers(self, index: int) -> list[int]:
        return [reader for reader in self._run.readers(index) if reader in self._run.on_host]

    def contradicts(self, index: int, expected: Array, reader: int, by_log: Introduced | None) -> bool:
        """Return whether a reader's value follows from the right value of operator `index`, not from the logged one.

        `expected`: the right value. `by_log`: the reader's own error if it read the logged value.
        A reader that received the value on another grid contradicts the log if the converted value does.
        """
        run = self._run
        conversion = run.requantized.get((reader, index))
        if conversion is None or conversion.inferred:
            result = run.call(reader, {index: expected})
            assert isinstance(result, np.ndarray), "the same call"
            assert by_log is not None, "an operator that was computed from the log"
            return self.explains(reader, self._own_error(reader, result).introduced, by_log)
        right, logged = (
            introduced_error(Difference.between(conversion, source))
            for source in (expected, run.values[index])
            if isinstance(source, np.ndarray)
        )
        return self.explains(reader, right, logged)

    def _is_nearer(self, index: int, result: Array, than: "_OwnError") -> bool:
        """Return whether a result can explain the device's value better: over the same elements, its error is smaller.

        This takes a fraction of the time of `_own_error`.
        """
        if than.introduced.nonfinite or than.introduced.gap.mse is None:
            return True
        difference = Difference.between(self._run.captured[index], result)
        mse = sums_of_finite(difference.actual, difference.expected, than.used)[0].gap.mse
        return mse is not None and mse < than.introduced.gap.mse

    def expected(self, index: int) -> Array:
        """Return an operator's right value on the device's own inputs, rounded to the device's grid."""
        on_host = self._run.on_host[index]
        return self._difference(index, on_host).expected.dequantized(on_host.dtype).astype(on_host.dtype, copy=False)

    def _errors(self, index: int, own_error: "_OwnError", instead: Mapping[int, Value]) -> dict[Cause, Array]:
        run, on_host = self._run, own_error.on_host
        if on_host.dtype.kind != "f":
            return {}
        qparams, unrounded = run.captured[index].qparams, run.unrounded.get(index)
        actual, expected = own_error.difference.actual, own_error.difference.expected
        errors: dict[Cause, Array] = {}
        if unrounded is not None:
            errors["device"] = signed_error(unrounded, on_host)
        else:
            errors["device"] = signed_error(actual.dequantized(np.float32), expected.dequantized(np.float32))
            errors |= grid_errors(on_host, expected, qparams) if qparams else {}
            errors |= half_errors(on_host) if run.captured[index].half else {}
        for cause, error in self._conversion_errors(index, instead).items():
            errors[cause] = errors.get(cause, np.float32(0)) + error
        errors |= self._floats.errors(run, index, run.on_host[index])
        if own_error.used is None:
            return errors
        # An element that is unused after rounding may have been used before it: keep the error of its rounding.
        counted = {
            c: own_error.used if c == "device" else own_error.used | np.isfinite(error) for c, error in errors.items()
        }
        return {cause: np.where(counted[cause], error, np.float32(0)) for cause, error in errors.items()}

    def _conversion_errors(self, index: int, instead: Mapping[int, Value]) -> dict[Cause, Array]:
        """Return the effects on an operator's value of the conversions of its inputs to other grids, by cause.

        The error of a conversion arises where the converted value is read. `instead`: replaces wrong logged values.
        """
        run = self._run
        values = ChainMap(dict(instead), run.values)
        received = [source for source in self._sources(index) if (index, source) in run.received]
        errors: dict[Cause, Array] = {}
        stages: dict[Cause, dict[int, Value]] = {"clipping": {}, "resolution": {}, "device": {}}
        for source in received:
            plain, conversion = values[source], run.requantized[index, source]
            assert isinstance(plain, np.ndarray), "a logged value"
            assert conversion.qparams is not None, "on a grid"
            rounded = on_grid(plain, conversion.qparams, dtype=np.float32)
            clipped = grid_errors(plain, rounded, conversion.qparams).get("clipping")
            stages["clipping"][source] = plain if clipped is None else np.asarray(plain + clipped)
            stages["resolution"][source] = rounded
            stages["device"][source] = run.received_value(index, source, instead)
        before = run.kernels.call(index, values) if received else None
        for cause, inputs in stages.items():
            after = run.kernels.call(index, ChainMap(inputs, values)) if isinstance(before, np.ndarray) else None
            if isinstance(before, np.ndarray) and isinstance(after, np.ndarray):
                errors[cause], before = signed_error(after, before), after
        return {cause: error for cause, error in errors.items() if error.any()}

    def _is_float16(self, index: int) -> bool:
        """Return whether an operator only moves elements, and its value is a float without a grid."""
        run = self._run
        return (
            index in run.kernels.data_movement_ops
            and run.captured[index].qparams is None
            and run.on_host[index].dtype == np.float32
        )

    def _sources(self, index: int) -> Sequence[int]:
        return self._run.kernels.sources[index]

    def _own_error(self, index: int, on_host: Array) -> "_OwnError":
        difference = self._difference(index, on_host)
        if on_host.dtype.kind != "f" and (differs := self._run.differing_picks(index, difference)) is not None:
            difference = replace(difference, differs=differs)
        logged = self._run.captured[index]
        actual = logged.elements if logged.qparams is None else self._run.values[index]
        assert isinstance(actual, np.ndarray), "a logged value"
        with np.errstate(over="ignore"):
            expected = difference.expected.dequantized(on_host.dtype)
        used, masked_by = self._use.used_mask(index, actual, expected)
        return _OwnError(on_host, difference, used, masked_by, introduced_error(difference, used))

    def _difference(self, index: int, on_host: Array) -> Difference:
        run, captured = self._run, self._run.captured[index]
        return run.difference(index) if on_host is run.on_host[index] else Difference.between(captured, on_host)


@dataclass(frozen=True, slots=True)
class _OwnError:
    on_host: Array
    difference: Difference
    used: Array | None
    masked_by: tuple[int, ...]
    introduced: Introduced

    @property
    def departure(self) -> Departure | None:
        """Return what the device computed beyond exact rounding, at the used elements."""
        difference, used = self.difference, self.used
        if difference.actual.qparams is not None and self.on_host.dtype.kind == "f":
            steps = difference.steps
            steps = steps if steps is None or used is None else np.where(used, steps, 0)
            if steps is None or not steps.any():
                return None
            undefined = np.isnan(steps)
            if not undefined.any():
                return Departure(steps=steps)
            values = difference.actual.dequantized(self.on_host.dtype)
            return Departure(steps=np.where(undefined, 0, steps), undefined=undefined, values=values)
        expected = difference.expected.elements
        counted = used if difference.differs is None else difference.differs & (True if used is None else used)
        return departure_of(expected, difference.actual.elements.astype(expected.dtype, copy=False), counted)
