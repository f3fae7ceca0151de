"""The model of the device's arithmetic: a run of the program on the host in which each source of error can be left out.

At every value, the program computes the operator exactly, clips and rounds the result to the value's grid or to
float16, and the device may depart from this. Which values are rounded, and where, is data: it comes from the lowering
or, for a captured sample, from the evidence of the replay. With all errors, a run of a captured sample gives the values
that the device logged. Without any, it gives those of the float model.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from qnnsweep.tasks.numerics.dequantize import dequantize, on_grid, quantize
from qnnsweep.tasks.numerics.element_use import Array, Kernels, Value
from qnnsweep.tasks.records import Quantization
from qnnsweep.tasks.records.vocabulary import Cause

IsLeftOut = Callable[[Cause, int], bool]
"""Decides whether the errors of a cause at an operator are left out. The model's inputs have the indices -1, -2, …"""

Part = tuple[Cause, int]
"""A cause of error, and the index of the operator where it arises."""

ARISING: tuple[Cause, ...] = ("weights", "bias", "clipping", "resolution", "overflow", "device")
"""The causes of error that arise at operators, and that a run can leave out."""
_BASES = (frozenset[Cause](), frozenset[Cause](ARISING))
"""The causes that a run leaves out if runs without one part, or with it alone, start from its values."""
LARGEST_HALF = 65504.0
"""The largest finite float16."""
_HALF_BITS = 2**11  # the significant bits of a float16
_MOST_RECORDED = 2**26  # elements of the values of a run
_LEAST_NAN = 65568.0  # halfway between an infinity, read as 65536, and the least NaN, read as 65600


@dataclass(frozen=True, kw_only=True, slots=True)
class Departure:
    """What the device computed at one value beyond exact rounding.

    `steps`: in steps of the value's grid. `difference`: of a value without a grid; an element that is as in the
    captured run, `expected`, becomes exactly that of the device, in `values`. `replaced`: which elements have `values`
    instead, because no difference leads to them: booleans, indices, infinities and NaNs. `undefined`: which elements of
    a value with a grid have `values` as long as they are NaN, such as a division of zero by zero.
    """

    steps: Array | None = None
    difference: Array | None = None
    expected: Array | None = None
    replaced: Array | None = None
    undefined: Array | None = None
    values: Array | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Arithmetic:
    """The sources of error of a program, by operator index. The model's inputs have the indices -1, -2 and so on."""

    grids: Mapping[int, Quantization] = field(default_factory=dict[int, Quantization])
    """The grids to which values are rounded."""
    written: Mapping[int, Quantization] = field(default_factory=dict[int, Quantization])
    """The grids on which kernels of the device write values that are read on others, those of `grids`."""
    halves: frozenset[int] = frozenset()
    """The values that are rounded to float16."""
    conversions: Mapping[tuple[int, int], Quantization] = field(default_factory=dict[tuple[int, int], Quantization])
    """The grids on which readers receive the values of their sources, by reader and source."""
    merged: frozenset[tuple[int, int]] = frozenset()
    """The readers, with their sources, that the compiler merged: the reader has the value before its rounding."""
    float_weights: Mapping[int, Value] = field(default_factory=dict[int, Value])
    """The values of constants, computed from the float weights."""
    float_biases: Mapping[int, Value] = field(default_factory=dict[int, Value])
    """The values of constants, computed from the float biases that saturate the 32 bits of their grid."""
    conversion_departures: Mapping[tuple[int, int], Array] = field(default_factory=dict[tuple[int, int], Array])
    """What the device computed beyond exact rounding in the conversions, by reader and source."""
    departures: Mapping[int, Departure] = field(default_factory=dict[int, Departure])
    unrounded_departures: Mapping[int, Array] = field(default_factory=dict[int, Array])
    """What the device computed differently before the rounding, at values that a merged reader has."""

    def run(self, kernels: Kernels, inputs: Sequence[Array], is_left_out: IsLeftOut) -> list[Array] | None:
        """Return the final outputs; None if an operator cannot be computed. `inputs`: not rounded."""
        return _Run(self, kernels, inputs, is_left_out).outputs()


@dataclass(slots=True)
class _Recorded:
    """The values of a run up to some operator, before and after their rounding, from which other runs can start."""

    exact: dict[int, Value] = field(default_factory=dict[int, Value])
    values: dict[int, Value] = field(default_factory=dict[int, Value])
    passed: set[int] = field(default_factory=set[int])
    elements: int = 0
    end: int = 0
    """The index of the first operator whose value was not recorded."""


class SampleRuns:
    """The runs of one sample that leave causes out, and one part. Runs that differ in a part share their beginning."""

    def __init__(self, arithmetic: Arithmetic, kernels: Kernels, inputs: Sequence[Array]) -> None:
        self._arithmetic, self._kernels, self._inputs = arithmetic, kernels, inputs
        self._recorded: dict[frozenset[Cause], _Recorded] = {}

    @property
    def has_departures(self) -> bool:
        """Whether the device computed anything beyond exact rounding."""
        arithmetic = self._arithmetic
        return bool(arithmetic.departures or arithmetic.unrounded_departures or arithmetic.conversion_departures)

    def without(self, causes: frozenset[Cause], part: Part | None = None) -> list[Array] | None:
        """Return the final outputs of the run that leaves causes out at all operators, and one cause at one of them.

        Return None if an operator cannot be computed.
        """
        return self._run(lambda cause, index: cause in causes or (cause, index) == part, causes, part)

    def alone(self, part: Part) -> list[Array] | None:
        """Return the final outputs of the run with one cause at one operator alone; see `without`."""
        return self._run(lambda cause, index: (cause, index) != part, frozenset(ARISING), part)

    def _run(self, is_left_out: IsLeftOut, base: frozenset[Cause], part: Part | None) -> list[Array] | None:
        """Run the program. `base`: the causes without which a run has the same values before the part."""
        run = _Run(self._arithmetic, self._kernels, self._inputs, is_left_out)
        if part is not None:
            return run.outputs(start=self._recorded.get(base), before=part[1])
        if base not in _BASES:
            return run.outputs()
        self._recorded[base] = _Recorded()
        return run.outputs(record=self._recorded[base])


class _Run:
    def __init__(
        self, arithmetic: Arithmetic, kernels: Kernels, inputs: Sequence[Array], is_left_out: IsLeftOut
    ) -> None:
        self._arithmetic, self._kernels, self._is_left_out = arithmetic, kernels, is_left_out
        self._passed: set[int] = set()  # the operators that would round, but pass their source's value on
        self._exact: dict[int, Value] = {-1 - number: value for number, value in enumerate(inputs)}
        self._values: dict[int, Value] = {
            index: self._rounded(index, value) for index, value in self._exact.items() if isinstance(value, np.ndarray)
        }

    def outputs(
        self, record: _Recorded | None = None, start: _Recorded | None = None, before: int = 0
    ) -> list[Array] | None:
        """Compute all operators in their order. A value is released after its last reader.

        `record`: takes the values. `start`: the values of the operators with indices less than `before`.
        """
        kernels = self._kernels
        released = last_reads(kernels.sources, kernels.outputs)
        first = 0 if start is None else max(0, min(before, start.end))
        if start is not None and first:
            self._exact |= {index: value for index, value in start.exact.items() if index < first}
            self._values |= {index: value for index, value in start.values.items() if index < first}
            self._passed |= start.passed
        for index in range(first, len(kernels.sources)):
            if index in kernels.constants:
                continue
            exact = self._computed(index)
            if exact is None:
                return None
            if isinstance(exact, np.ndarray):
                self._exact[index], self._values[index] = exact, self._rounded(index, exact)
            else:
                self._exact[index] = self._values[index] = exact
            if record is not None:
                self._record(index, record)
            for source in released.get(index, ()):
                self._exact.pop(source, None)
                self._values.pop(source, None)
        return kernels.answer(self._values, self._inputs())

    def _record(self, index: int, record: _Recorded) -> None:
        value = self._values[index]
        record.elements += sum(part.size for part in (value if isinstance(value, tuple) else (value,)))
        if record.elements <= _MOST_RECORDED:
            record.exact[index], record.values[index] = self._exact[index], value
            record.passed |= self._passed
            record.end = index + 1

    def _computed(self, index: int) -> Value | None:
        """Return an operator's value before its own rounding."""
        arithmetic, without_weights = self._arithmetic, self._is_left_out("weights", index)
        received: dict[int, Value] = {}
        for source in self._kernels.sources[index]:
            if source not in self._kernels.constants:
                received[source] = self._received(index, source)
            elif without_weights and source in arithmetic.float_weights:
                received[source] = arithmetic.float_weights[source]
            elif source in arithmetic.float_biases and self._is_left_out("bias", index):
                received[source] = arithmetic.float_biases[source]
        passed = self._passed.intersection(received)  # the value of a dequantize is then that of its quantize
        if index in self._kernels.quantizing and self._is_left_out("resolution", index):
            self._passed.add(index)
            return self._values[self._kernels.quantizing[index]]
        if passed:
            return received[passed.pop()]
        exact = self._kernels.call(index, received, self._inputs(index), exact_constants=without_weights)
        departure = arithmetic.unrounded_departures.get(index)
        if departure is not None and isinstance(exact, np.ndarray) and not self._is_left_out("device", index):
            return np.asarray(exact + departure)
        return exact

    def _received(self, reader: int, source: int) -> Value:
        """Return the value of a source as its reader has it."""
        if (reader, source) in self._arithmetic.merged:
            return self._exact[source]
        value, qparams = self._values[source], self._arithmetic.conversions.get((reader, source))
        if qparams is None or not isinstance(value, np.ndarray):
            return value
        converted = on_grid(
            value,
            qparams,
            clips=not self._is_left_out("clipping", reader),
            rounds=not self._is_left_out("resolution", reader),
        )
        departure = self._arithmetic.conversion_departures.get((reader, source))
        is_exact = departure is None or self._is_left_out("device", reader)
        return converted if is_exact else np.asarray(converted + departure)

    def _inputs(self, reader: int | None = None) -> list[Array]:
        """Return the model's inputs as an operator reads them; None: as the final outputs read them."""
        merged = self._arithmetic.merged
        chosen = [
            (self._exact if (reader, index) in merged else self._values)[index]
            for index in sorted((index for index in self._values if index < 0), reverse=True)
        ]
        return [value for value in chosen if isinstance(value, np.ndarray)]

    def _rounded(self, index: int, exact: Array) -> Array:
        arithmetic, is_left_out = self._arithmetic, self._is_left_out
        departure = None if is_left_out("device", index) else arithmetic.departures.get(index)
        qparams, value = arithmetic.grids.get(index), exact
        written = None if is_left_out("device", index) else arithmetic.written.get(index)
        if qparams is not None and written is not None:
            value = dequantize(quantize(exact, written), qparams, exact.dtype.type)
        elif qparams is not None and exact.dtype.kind == "f":
            value = on_grid(
                exact,
                qparams,
                clips=not is_left_out("clipping", index),
                rounds=not is_left_out("resolution", index),
                more_steps=departure.steps if departure else None,
            )
        elif index in arithmetic.halves and exact.dtype == np.float32:
            value = as_half(
                exact, overflows=not is_left_out("overflow", index), rounds=not is_left_out("resolution", index)
            )
        if departure is None:
            return value
        if departure.difference is not None:
            moved = np.asarray(value + departure.difference)
            if departure.expected is not None and departure.values is not None:
                moved = np.where(value == departure.expected, departure.values, moved).astype(value.dtype, copy=False)
            value = moved
        if departure.undefined is not None and departure.values is not None:
            undefined = departure.undefined & np.isnan(value)
            value = np.where(undefined, departure.values, value).astype(value.dtype, copy=False)
        if departure.replaced is not None and departure.values is not None:
            value = np.where(departure.replaced, departure.values, value).astype(value.dtype, copy=False)
        return value


def as_half(values: Array, *, overflows: bool = True, rounds: bool = True) -> Array:
    """Return float32 values rounded to float16, as float32. `overflows`: beyond its range, values become infinite.

    `rounds`: whether finite values lose the bits that a float16 does not have.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        halves = values.astype(np.float16).astype(np.float32)
        beyond = np.isinf(halves) & np.isfinite(values)
        rounded = halves if rounds else np.where(beyond, halves, values)
        if overflows or not beyond.any():
            return rounded
        mantissa, exponent = np.frexp(values)
        wide = np.ldexp(np.rint(mantissa * _HALF_BITS) / _HALF_BITS, exponent) if rounds else values
        return np.where(beyond, wide, rounded).astype(np.float32)


def read_half(values: Array) -> Array:
    """Return values that a simulator converted from float16 to float32, with their infinities and NaNs.

    The simulator reads the bits of an infinity and of a NaN as numbers beyond the largest float16: 65536 for an
    infinity, and a larger magnitude for a NaN.
    """
    magnitudes = np.abs(values)
    if not (magnitudes > LARGEST_HALF).any():
        return values
    infinite = np.copysign(np.float32(np.inf), values)
    special = np.where(magnitudes < _LEAST_NAN, infinite, np.float32(np.nan))
    return np.where(magnitudes > LARGEST_HALF, special, values)


def departure_of(expected: Array, actual: Array, used: Array | None = None) -> Departure | None:
    """Return the departure of a value without a grid; None if the device computed the expected elements.

    `used`: the elements that count; None if all count.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        differs = (actual != expected) & ~((actual != actual) & (expected != expected))
        if used is not None:
            differs &= used
        if not differs.any():
            return None
        if actual.dtype.kind != "f":
            return Departure(replaced=differs, values=actual)
        difference = (actual - expected).astype(expected.dtype)
    finite = np.isfinite(difference)
    odd = differs & ~finite
    difference = np.where(differs & finite, difference, 0).astype(expected.dtype, copy=False)
    actual = np.where(differs, actual, expected).astype(expected.dtype, copy=False)
    return Departure(difference=difference, expected=expected, replaced=odd if odd.any() else None, values=actual)


def last_reads(sources: Sequence[Sequence[int]], outputs: Container[int]) -> dict[int, list[int]]:
    """Return, per operator, the sources that no later operator reads and that are no final outputs.

    `sources`: per operator, the operators that it reads. `outputs`: the operators whose values are final outputs.
    """
    last = {source: reader for reader, read in enumerate(sources) for source in read}
    reads: dict[int, list[int]] = {}
    for source, reader in last.items():
        if source not in outputs:
            reads.setdefault(reader, []).append(source)
    return reads
